"""The report that the commands print: a summary sentence, a table that needs no manual, and what is wrong."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from made_reports import doubted, lifted, report, row, unloadable
from mytx.exporter.parity.report import EARLIER, REFERENCE, Finding, GraphReport, ParityReport
from mytx.exporter.report.summary import percent, sentence, share_of
from mytx.exporter.report.text import print_report

WRONG = Finding("rounding", "case 03 (batch 4), logits at [0, 3]: 5 where the model gives 4", "03")


def printed(found: ParityReport, *, width: int = 80, terminal: bool = False, verbose: bool = False) -> list[str]:
    """The lines that the command prints, without colours and without spaces at the ends of lines."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None, highlight=False)
    print_report(console, found, verbose=verbose)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def eager(*findings: Finding, runtime: str = "PyTorch") -> GraphReport:
    return row(*findings, format="eager", runtime=runtime)


# --- the sentence ----------------------------------------------------------------------------------------------------


def test_a_report_that_passed_names_the_files_the_comparisons_and_the_largest_error() -> None:
    found = report(
        eager(),
        row(max_abs_error=1.14e-5, worst_ratio=1.2, cases=700),
        row(graph="decoder", max_abs_error=2e-6, worst_ratio=1.84, cases=603),
        replace(lifted(), worst_ratio=0.01, cases=0),
    )
    assert sentence(found) == (
        "Passed",
        "2 files agree with PyTorch in 1,303 comparisons; largest error 1.1e-05, at most 46 % of what is allowed",
    )
    assert printed(found)[0].startswith("Passed: 2 files agree with PyTorch in 1,303 comparisons; ")
    assert sentence(report(row()))[1].startswith("1 file agrees with PyTorch in 6 comparisons; ")


def test_a_float64_run_counts_by_what_is_allowed_there() -> None:
    assert share_of([row(worst_ratio=1.0), replace(lifted(), worst_ratio=0.09)]) == pytest.approx(0.9)
    assert sentence(report(row(), replace(lifted(), worst_ratio=0.09)))[1].endswith("at most 90 % of what is allowed")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row(WRONG)], "1 file differs from PyTorch: encoder.onnx"),
        ([row(), row(WRONG, graph="full")], "1 of 2 files differs from PyTorch: full.onnx"),
        (
            [row(), row(WRONG, graph="decoder"), row(WRONG, graph="full"), eager()],
            "2 of 3 files differ from PyTorch: decoder.onnx, full.onnx",
        ),
        ([row(), replace(unloadable(), graph="full")], "1 of 2 files fails to run: full.onnx"),
        (
            [row(WRONG), replace(doubted(), graph="decoder"), replace(unloadable(), graph="full")],
            "1 of 3 files differs from PyTorch: encoder.onnx; 1 of 3 files cannot be judged: decoder.onnx; "
            "1 of 3 files fails to run: full.onnx",
        ),
        ([row(), doubted(), row(WRONG)], "1 file differs from PyTorch: encoder.onnx"),
        ([row(WRONG, runtime=f"onnxruntime{EARLIER}"), row()], "1 file differs from PyTorch: encoder.onnx"),
        ([row(), eager(WRONG)], "the PyTorch model fails its own checks"),
        (
            [row(), replace(doubted(), format="eager", runtime="PyTorch"), eager(WRONG, runtime=f"{REFERENCE}a:b")],
            "the PyTorch model cannot be judged; the PyTorch model differs from the reference a:b",
        ),
        ([row(), eager(WRONG, runtime=f"{REFERENCE}a:b{EARLIER}")], "the PyTorch model differs from the reference a:b"),
        ([replace(row(), passed=False)], "1 file differs from PyTorch: encoder.onnx"),
        ([], "nothing was verified"),
    ],
)
def test_a_report_that_failed_names_the_files_and_how_they_failed(rows: list[GraphReport], words: str) -> None:
    assert sentence(report(*rows)) == ("FAILED", words)
    assert printed(report(*rows))[0] == f"FAILED: {words}."


def test_what_cannot_be_judged_is_called_neither_passed_nor_failed() -> None:
    lines = printed(report(row(), replace(doubted(), graph="full")))
    assert lines[0] == (
        "Not proven: nothing is known to be wrong, but PyTorch's own float32 error is too large to judge full.onnx."
    )
    assert [line.split()[:2] for line in lines[3:5]] == [["encoder.onnx", "passed"], ["full.onnx", "not"]]
    assert not any("FAILED" in line for line in lines)


# --- the table -------------------------------------------------------------------------------------------------------


def test_a_file_has_one_row_over_all_its_runs_and_the_model_one_after_the_files() -> None:
    found = report(
        eager(),
        eager(runtime=f"{REFERENCE}training:build"),
        row(max_abs_error=3e-6, worst_ratio=1.0),
        row(runtime="1 thread", cases=1200, max_abs_error=2e-6, worst_ratio=2.0),
        lifted(),
        eager(),
        row(WRONG, graph="full"),
    )
    lines = printed(replace_ratio(found))
    assert lines[1] == lines[7] == ""
    assert lines[2:7] == [
        "file                      result  comparisons  largest error  of what is allowed",
        "encoder.onnx              passed        1,212        3.0e-06                50 %",
        "full.onnx                 FAILED            6        1.0e-07               225 %",
        "PyTorch model             passed           12        1.0e-07                10 %",
        "reference training:build  passed            6        1.0e-07                10 %",
    ]
    assert lines[8] == f"full.onnx, rounding: {WRONG.message}"


def replace_ratio(found: ParityReport) -> ParityReport:
    """The same with a ratio in float64 that float64 allows."""
    rows = (replace(run, worst_ratio=0.01) if run.allowed < 1 else run for run in found.graphs)
    return ParityReport(tuple(rows))


def test_a_file_without_a_number_has_none_in_the_table() -> None:
    lines = printed(report(unloadable()))
    assert lines[3].split() == ["encoder.onnx", "FAILED", "0", "no", "number", "no", "number"]


def test_verbose_adds_each_run_with_its_ratio_and_what_is_allowed() -> None:
    found = replace_ratio(report(row(), lifted(), unloadable(), eager()))
    lines = printed(found, verbose=True)
    assert lines[:5] == printed(found)[:5]
    table = lines[6:13]
    assert table[0].split() == ["run", "result", "cases", "error", "ratio", "allowed"]
    assert table[1:] == [
        "encoder.onnx",
        "  onnxruntime              passed      6    1.0e-07       0.40        4",
        "  onnx.reference, float64  passed      6    1.0e-07       0.01      0.1",
        "  onnxruntime              FAILED      0  no number  no number        4",
        "encoder, PyTorch",
        "  PyTorch                  passed      6    1.0e-07       0.40        4",
    ]
    assert lines[13].startswith("ratio: the largest error in units of PyTorch's own float32 error; up to 4 is allowed")


@pytest.mark.parametrize("terminal", [False, True])
def test_usual_tables_fit_in_80_columns(terminal: bool) -> None:
    found = report(row(), row(graph="generate", format="torchscript"), row(WRONG, graph="full"), doubted(), eager())
    narrow = printed(found, width=80, terminal=terminal)
    table = narrow[narrow.index("") + 1 :][:5]
    assert table == printed(found, width=400, terminal=terminal)[2:7]
    assert table[0].startswith("file ")
    assert table[-1].startswith("PyTorch model ")
    assert max(map(len, table)) <= 80


@pytest.mark.parametrize(("width", "terminal"), [(80, False), (80, True), (50, True), (20, True)])
def test_the_name_of_a_file_is_never_wrapped_nor_cut(width: int, terminal: bool) -> None:
    name = "a_graph_with_a_name_of_its_own_that_is_as_long_as_names_are_in_some_places_модель"
    lines = printed(report(row(graph=name), row()), width=width, terminal=terminal)
    assert sum(line.startswith(f"{name}.onnx ") for line in lines) == 1


def test_on_a_narrow_terminal_titles_wrap_and_every_row_stays_one_line() -> None:
    lines = printed(report(row(), row(graph="full")), width=66, terminal=True)
    rows = [line for line in lines if ".onnx" in line]
    assert [row.split() for row in rows] == [
        ["encoder.onnx", "passed", "6", "1.0e-07", "10", "%"],
        ["full.onnx", "passed", "6", "1.0e-07", "10", "%"],
    ]
    assert max(map(len, lines)) <= 66


def test_names_and_numbers_are_text_whatever_they_hold() -> None:
    lines = printed(report(row(graph="[red]x[/]"), row(WRONG, graph="[bold]y")), verbose=True)
    assert lines[3].startswith("[red]x[/].onnx ")
    assert lines[0] == "FAILED: 1 of 2 files differs from PyTorch: [bold]y.onnx."


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.0, "0 %"),
        (1e-9, "1 %"),
        (0.456, "46 %"),
        (0.999, "100 %"),
        (1.0, "100 %"),
        (1.001, "101 %"),
        (12.5, "1,250 %"),
        (1e9, "> 999,999 %"),
        (math.inf, "no number"),
        (math.nan, "no number"),
    ],
)
def test_a_share_is_shown_so_that_100_percent_is_the_limit(share: float, words: str) -> None:
    assert percent(share) == words


def test_a_run_without_a_number_is_never_hidden_by_one_that_has_one() -> None:
    assert share_of([row(), unloadable()]) == math.inf
    assert share_of([row(worst_ratio=math.nan), row()]) == math.inf
