"""One file, run in several ways: which cases, against which contract, with which findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from exported_models import Exported
from mytx.exporter.cases.case import Array, Case
from mytx.exporter.contracts.contract import Axis, Contract, TensorSpec
from mytx.exporter.formats.table import FORMATS
from mytx.exporter.parity.compare import ULP, Expected
from mytx.exporter.parity.report import Finding, GraphReport
from mytx.exporter.parity.verify import verify_file
from mytx.exporter.runtimes import onnx_runs
from mytx.exporter.runtimes.run import Run, runs_of
from mytx.exporter.runtimes.runtime import Description

X = TensorSpec("x", "float32", (Axis("batch"), 4))
Y = TensorSpec("y", "float32", (Axis("batch"), 4))
CONTRACT = Contract("encoder", (X,), (Y,), "batch first")
NOISE = 1e-6
PLAN = [
    Case(f"{n:02d}", {"x": np.full((n + 1, 4), n + 1, np.float32)}, f"batch {n + 1}", small=n < 2) for n in range(5)
]
EXPECTED = [{"y": Expected(2 * case.inputs["x"].astype(np.float64), NOISE)} for case in PLAN]


class Doubling:
    """Twice ``x``, off by so many allowances in the cases of those batches."""

    def __init__(self, ratio: float = 0.0, batches: Sequence[int] = (), dtype: str = "float32") -> None:
        self.ratio = ratio
        self.batches = batches
        self.dtype = dtype
        self.asked: list[int] = []

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        batch = len(inputs["x"])
        self.asked.append(batch)
        y = 2 * inputs["x"].astype(np.float64)
        if batch in self.batches:
            y[0, 1] += self.ratio * (NOISE + ULP * 2 * batch)
        return {"y": y.astype(self.dtype)}

    def describe(self) -> Description:
        tensors = ({spec.name: (self.dtype, spec.labels)} for spec in (X, Y))
        return Description("doubling", "1", *tensors)


def verified(*runs: Run, expected: Sequence[Mapping[str, Expected]] = EXPECTED, **options: object) -> list[GraphReport]:
    return verify_file(Path("encoder.any"), CONTRACT, PLAN, expected, runs, format_name="any", **options)  # type: ignore[arg-type]


def a_run(runtime: Doubling, name: str = "doubling", **options: object) -> Run:
    return Run(name, lambda path: runtime, **options)  # type: ignore[arg-type]


# --- runs ------------------------------------------------------------------------------------------------------------


def test_each_run_has_its_report_in_order() -> None:
    honest, wrong = Doubling(), Doubling(100.0, [3])
    first, second = verified(a_run(honest, "first"), a_run(wrong, "second"))
    assert (first.runtime, first.passed, first.cases, first.compared) == ("first", True, 5, 60)
    assert (second.runtime, second.passed, second.cases, second.worst_case) == ("second", False, 5, "batch 3")
    assert [finding.check for finding in second.findings] == ["rounding"]
    assert (first.format, second.graph) == ("any", "encoder")
    assert honest.asked == wrong.asked == [1, 2, 3, 4, 5]


def test_the_file_is_opened_by_its_path_once_for_each_run() -> None:
    opened: list[Path] = []
    run = Run("doubling", lambda path: opened.append(path) or Doubling())  # type: ignore[func-returns-value]
    verified(run, run)
    assert opened == [Path("encoder.any")] * 2


def test_a_run_is_asked_for_the_cases_that_it_takes_and_no_others() -> None:
    runtime = Doubling(100.0, [3, 4, 5])
    (report,) = verified(a_run(runtime, takes=lambda case: case.small))
    assert runtime.asked == [1, 2]
    assert (report.passed, report.cases, report.compared) == (True, 2, 12)
    other = Doubling(100.0, [5])
    (report,) = verified(a_run(other, takes=lambda case: not case.small))
    assert (report.cases, report.worst_case) == (3, "batch 5")
    assert "case 04 (batch 5)" in report.findings[0].message  # each with its own reference


def test_a_run_that_takes_no_case_does_not_pass() -> None:
    (report,) = verified(a_run(Doubling(), takes=lambda case: False))
    assert not report.passed
    assert "nothing was compared" in report.findings[0].message


def test_a_plan_that_was_cut_short_does_not_pass() -> None:
    (report,) = verified(a_run(Doubling()), expected=[*EXPECTED, *EXPECTED])
    assert not report.passed
    (finding,) = report.findings
    assert finding.check == "runtime"
    assert finding.message == f"there are {len(EXPECTED)} cases, and references for {2 * len(EXPECTED)}"


# --- structure -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "lifted", "passed"), [(0.05, True, True), (0.5, True, False), (0.5, False, True)])
def test_a_file_that_is_run_in_float64_may_be_hardly_off(ratio: float, lifted: bool, passed: bool) -> None:
    runtime = Doubling(ratio, [2], "float64" if lifted else "float32")
    (report,) = verified(a_run(runtime, lifted=lifted))
    assert report.passed is passed
    assert {finding.check for finding in report.findings} == (set() if passed else {"structure"})
    assert report.allowed == (0.1 if lifted else 4.0)


def test_a_file_that_is_run_in_float64_must_give_float64() -> None:
    (report,) = verified(a_run(Doubling(dtype="float32"), lifted=True))
    assert not report.passed
    assert {finding.check for finding in report.findings} == {"interface", "structure"}
    messages = [finding.message for finding in report.findings]
    assert "input x is float32, the contract says float64" in messages
    assert "nothing was compared" in messages
    (report,) = verified(a_run(Doubling(dtype="float64")))
    assert {finding.check for finding in report.findings} == {"interface", "rounding"}


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_loaded_fails_its_run_and_the_others_go_on() -> None:
    def fails(path: Path) -> Doubling:
        raise RuntimeError(f"{path}\n  is no graph")

    broken, good = verified(Run("broken", fails), a_run(Doubling()))
    assert (broken.passed, broken.cases, broken.compared) == (False, 0, 0)
    assert broken.findings[0] == Finding("runtime", "broken cannot load encoder.any: encoder.any is no graph")
    assert good.passed


def test_what_was_found_before_fails_every_run_that_of_a_file_that_cannot_be_loaded_too() -> None:
    def fails(path: Path) -> Doubling:
        raise RuntimeError("no graph")

    found = [Finding("weights", "a weight differs")]
    for report in verified(a_run(Doubling()), Run("broken", fails), a_run(Doubling()), found=found):
        assert report.findings[0] == found[0]
        assert not report.passed


def test_cases_that_fail_are_named_and_all_others_are_compared() -> None:
    class Fragile(Doubling):
        def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
            if len(inputs["x"]) in (2, 4):
                raise ValueError("cannot\n take it")
            return super().run(inputs)

    runtime = Fragile(100.0, [5])
    (report,) = verified(a_run(runtime))
    assert runtime.asked == [1, 3, 5]
    assert [(finding.check, finding.message) for finding in report.findings if finding.check == "runtime"] == [
        ("runtime", "case 01 (batch 2): cannot take it"),
        ("runtime", "case 03 (batch 4): cannot take it"),
        ("runtime", "2 of 5 cases gave no result"),
    ]
    assert (report.cases, report.compared, report.worst_case) == (3, 36, "batch 5")


def test_dimensions_are_checked_where_the_runtime_knows_their_names() -> None:
    class Nameless(Doubling):
        def describe(self) -> Description:
            described = super().describe()
            return replace(described, inputs={"x": ("float32", (None, None))}, outputs={"y": ("float32", (None, 4))})  # type: ignore[dict-item]

    known, unknown = verified(a_run(Nameless()), a_run(Nameless(), dimensions=False))
    assert [finding.check for finding in known.findings] == ["interface", "interface"]
    assert unknown.passed


def test_a_wrong_name_is_found_where_dimensions_are_not_known() -> None:
    class Renamed(Doubling):
        def describe(self) -> Description:
            return replace(super().describe(), inputs={"z": ("float32", ())})

    (report,) = verified(a_run(Renamed(), dimensions=False))
    assert [finding.message for finding in report.findings] == [
        "input z is not in the contract",
        "input x is missing from the file",
    ]


# --- doubtful cases --------------------------------------------------------------------------------------------------


def test_a_doubtful_case_is_measured_by_its_number_in_the_plan_whatever_the_run_takes() -> None:
    measured: list[int] = []

    def measure(number: int) -> Mapping[str, Expected]:
        measured.append(number)
        return {"y": replace(EXPECTED[number]["y"], noise=10 * NOISE)}

    (report,) = verified(a_run(Doubling(8.0, [5]), takes=lambda case: not case.small), measure=measure)
    assert measured == [4]
    assert report.passed
    assert report.worst_ratio < 4


def test_in_float64_what_is_doubtful_is_so_by_the_smaller_factor() -> None:
    measured: list[int] = []

    def measure(number: int) -> Mapping[str, Expected]:
        measured.append(number)
        return EXPECTED[number]

    for ratio in (0.3, 0.5):
        verified(a_run(Doubling(ratio, [2], "float64"), lifted=True), measure=measure)
    assert measured == [1]  # 0.5 is more than four times as far off as 0.1: no doubt there


# --- the ways to run a file ------------------------------------------------------------------------------------------


def test_full_is_run_by_way_of_its_halves_too_where_both_are_there(translation: Exported) -> None:
    for name in translation.graphs:
        translation.path(name)
    known, contract = FORMATS["onnx"], translation.contract("full")
    usual = [run.runtime for run in onnx_runs.runs()]
    for graph, present in (("full", ["full"]), ("full", ["full", "encoder"]), ("encoder", ["encoder", "decoder"])):
        runs = runs_of(known, translation.contract(graph), present, translation.folder)
        assert [run.runtime for run in runs] == usual
    runs = runs_of(known, contract, translation.graphs, translation.folder)
    assert [run.runtime for run in runs] == [*usual, "onnxruntime, decoder(encoder)"]
    (report,) = verify_file(
        translation.path("full"),
        contract,
        translation.plan("full"),
        translation.expected("full"),
        runs[-1:],
        format_name="onnx",
    )
    assert report.findings == ()
    assert report.passed
    assert report.cases == sum(case.core for case in translation.plan("full")) > 8


def test_halves_that_do_not_fit_each_other_are_found_even_where_full_is_right(
    translation: Exported, couplet: Exported, tmp_path: Path
) -> None:
    (tmp_path / "encoder.onnx").write_bytes(couplet.path("encoder").read_bytes())  # of another model, as wide
    for name in ("decoder", "full"):
        (tmp_path / f"{name}.onnx").write_bytes(translation.path(name).read_bytes())
    contract = translation.contract("full")
    runs = runs_of(FORMATS["onnx"], contract, translation.graphs, tmp_path)
    plan, expected = translation.plan("full"), translation.expected("full")
    first, last = verify_file(tmp_path / "full.onnx", contract, plan, expected, [runs[0], runs[-1]], format_name="onnx")
    assert first.passed
    assert not last.passed
    assert "rounding" in {finding.check for finding in last.findings}
