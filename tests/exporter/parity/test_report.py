"""Reports: what passes, and that JSON keeps it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mytx.exporter.cases.case import Case
from mytx.exporter.contracts.contract import Axis, Contract, TensorSpec
from mytx.exporter.parity.compare import EXACT, FACTOR, FAIL, NOT_JUDGED, PASS, Comparison
from mytx.exporter.parity.judge import check_interface, judge
from mytx.exporter.parity.report import NO_RESULT, CaseReport, Finding, GraphReport, ParityReport
from mytx.exporter.runtimes.run import Run
from mytx.exporter.runtimes.runtime import Description

INPUT = TensorSpec("x", "int64", (Axis("batch"), Axis("source")))
MASK = TensorSpec("mask", "bool", (Axis("batch"), Axis("source")))
OUTPUT = TensorSpec("y", "float32", (Axis("batch"), 8))
CONTRACT = Contract("encoder", (INPUT, MASK), (OUTPUT,), "batch first")
PLAN = [Case(f"{i:02d}", {"x": np.zeros((1, i + 1))}, f"source {i + 1}") for i in range(3)]
GOOD = Comparison("y", 1e-7, 2e-7, 0.5, PASS, (0, 1), "", 8)
RUN = Run("a runtime", lambda path: pytest.fail(f"{path} is not to be opened"))
LIFTED = replace(RUN, lifted=True)


def judged(*comparisons: Comparison, **changes: Any) -> GraphReport:
    """The verdict on one comparison for each case, in the order of the plan."""
    results = {case.name: [comparison] for case, comparison in zip(PLAN, comparisons, strict=False)}
    run = changes.pop("run", RUN)
    results, findings = changes.pop("results", results), changes.pop("findings", [])
    return judge(CONTRACT, run, PLAN, results, findings, **{"format_name": "onnx", **changes})


def test_good_comparisons_in_every_case_pass() -> None:
    report = judged(GOOD, replace(GOOD, max_abs_error=3e-7, ratio=1.5), GOOD)
    assert len(report.details) == 3
    plain = GraphReport("encoder", "onnx", "a runtime", 3, 24, 3e-7, 1.5, "source 2", True, ())
    assert replace(report, details=()) == plain
    assert judged(GOOD, GOOD, GOOD, format_name="other").format == "other"


def test_no_results_do_not_pass() -> None:
    report = judged()
    assert not report.passed
    assert (report.cases, report.compared, report.worst_ratio, report.max_abs_error) == (0, 0, math.inf, math.inf)
    assert {finding.check for finding in report.findings} == {"rounding", "runtime"}


def test_an_empty_plan_does_not_pass() -> None:
    report = judge(CONTRACT, RUN, [], {}, [], format_name="onnx")
    assert not report.passed
    assert [finding.message for finding in report.findings] == ["nothing was compared"]


def test_fewer_results_than_cases_do_not_pass() -> None:
    report = judged(GOOD, GOOD)
    assert not report.passed
    assert report.cases == 2
    assert [finding.message for finding in report.findings] == ["1 of 3 cases gave no result"]


def test_cases_without_a_comparison_do_not_pass() -> None:
    report = judged(results={case.name: [] for case in PLAN})
    assert not report.passed
    assert report.compared == 0


@pytest.mark.parametrize("count", [1, 3])
def test_cases_that_were_not_judged_do_not_pass(count: int) -> None:
    unclear = replace(GOOD, verdict=NOT_JUDGED, reason="too much noise")
    report = judged(*[unclear] * count, *[GOOD] * (3 - count))
    assert not report.passed
    assert [finding.check for finding in report.findings] == ["not judged"] * count
    assert report.doubted
    assert report.findings[0].message == "case 00 (source 1), y at [0, 1]: not judged: too much noise"


@pytest.mark.parametrize("position", [0, 1, 2])
def test_one_failure_anywhere_fails_and_all_failures_are_shown(position: int) -> None:
    """Only the last of several errors survives in some tools: here the first and the middle one do, too."""
    comparisons = [GOOD] * 3
    comparisons[position] = Comparison("y", 0.5, 1e-7, 99.0, FAIL, (0, 3), "off", 8)
    report = judged(*comparisons)
    assert not report.doubted
    assert not report.passed
    words = f"case 0{position} (source {position + 1}), y at [0, 3]: off"
    assert report.findings == (Finding("rounding", words, f"0{position}"),)
    assert (report.worst_ratio, report.max_abs_error, report.worst_case) == (99.0, 0.5, f"source {position + 1}")
    bad = replace(GOOD, verdict=FAIL, reason="bad")
    assert len(judged(bad, bad, bad).findings) == 3


def test_a_case_that_gave_no_result_does_not_shift_the_names_of_those_after_it() -> None:
    bad = replace(GOOD, verdict=FAIL, ratio=9.0, reason="bad")
    report = judged(results={"00": [GOOD], "02": [bad]})
    assert report.worst_case == "source 3"
    assert any(finding.message.startswith("case 02 (source 3)") for finding in report.findings)


def test_an_output_with_no_numbers_does_not_hide_the_largest_error() -> None:
    broken = Comparison("y", math.inf, math.nan, math.inf, FAIL, (), "shape")
    report = judged(replace(GOOD, max_abs_error=5.0), broken, GOOD)
    assert (report.max_abs_error, report.worst_ratio) == (math.inf, math.inf)


@pytest.mark.parametrize("check", ["weights", "interface", "runtime"])
def test_a_finding_of_any_check_fails_even_where_all_values_agree(check: str) -> None:
    report = judged(GOOD, GOOD, GOOD, findings=[Finding(check, "wrong")])
    assert not report.passed
    assert report.findings == (Finding(check, "wrong"),)
    assert report.worst_ratio == 0.5


def test_a_comparison_that_failed_by_its_name_dtype_or_shape_is_a_finding_of_the_interface() -> None:
    bad = replace(GOOD, verdict=FAIL, reason="shape [1], the model gives [2]", interface=True)
    for run in (RUN, LIFTED):
        report = judged(GOOD, bad, GOOD, run=run)
        assert [finding.check for finding in report.findings] == ["interface"]
        assert not report.passed


def test_values_that_are_off_in_float64_are_a_finding_of_structure() -> None:
    bad = replace(GOOD, verdict=FAIL, reason="off", ratio=0.2)
    report = judged(GOOD, bad, GOOD, run=LIFTED)
    assert [finding.check for finding in report.findings] == ["structure"]
    assert report.allowed == EXACT
    report = judged(GOOD, bad, GOOD)
    assert [finding.check for finding in report.findings] == ["rounding"]
    assert report.allowed == FACTOR


def test_what_was_not_judged_in_float64_is_not_called_a_fault_of_structure() -> None:
    unclear = replace(GOOD, verdict=NOT_JUDGED, reason="too much noise")
    report = judged(unclear, GOOD, GOOD, run=LIFTED)
    assert [finding.check for finding in report.findings] == ["not judged"]
    assert report.doubted


def test_a_run_in_float64_without_results_fails_by_structure_too() -> None:
    assert {finding.check for finding in judged(run=LIFTED).findings} == {"structure", "runtime"}


# --- the details -----------------------------------------------------------------------------------------------------


def test_each_case_that_was_asked_for_has_a_line_of_its_own() -> None:
    worse = replace(GOOD, output="z", max_abs_error=3e-7, ratio=1.5, allowed=8e-7)
    bad = replace(GOOD, verdict=FAIL, ratio=1.0, reason="off", allowed=4e-7)
    stopped = Finding("runtime", "case 02 (source 3): no memory", "02")
    report = judged(results={"00": [GOOD, worse], "01": [bad, worse]}, findings=[stopped])
    first, second, third = report.details
    assert first == CaseReport("00", "shapes", "source 1", {"batch": 1, "source": 1}, "z", 3e-7, 2e-7, 8e-7, 1.5, PASS)
    assert (second.output, second.verdict, second.passed) == ("y", FAIL, False)  # a verdict before a number
    assert second.message == "case 01 (source 2), y at [0, 1]: off"
    assert third == CaseReport("02", "shapes", "source 3", {"batch": 1, "source": 3}, message=stopped.message)
    assert (third.verdict, third.passed) == (NO_RESULT, False)


def test_the_spread_is_the_sum_over_cases_in_which_pytorchs_own_is_known() -> None:
    known = replace(GOOD, spread=(1, 2), own_spread=(2, 1))
    unknown = replace(GOOD, spread=(5, 5))
    report = judged(known, unknown, known)
    assert (report.spread, report.own_spread) == ((2, 4), (4, 2))
    report = judged(unknown, GOOD, unknown)
    assert (report.spread, report.own_spread) == ((10, 10), ())


# --- JSON ------------------------------------------------------------------------------------------------------------

PASSED = judged(GOOD, GOOD, GOOD)
FAILED = judged(findings=[Finding("weights", 'ключ "a" differs')])


MEASURED = replace(GOOD, allowed=1e-6, spread=(1, 2), own_spread=(2, 1))
BROKEN = Comparison("y", math.inf, math.nan, math.inf, FAIL, (), "shape", interface=True)


@pytest.mark.parametrize(
    "report",
    [
        PASSED,
        FAILED,
        judged(GOOD, GOOD, GOOD, run=LIFTED),
        judged(MEASURED, BROKEN, checked=("weights", "interface"), seconds=1.5),
    ],
)
def test_json_keeps_a_report_infinity_included(report: GraphReport) -> None:
    text = json.dumps(report.to_dict(), allow_nan=False)
    assert GraphReport.from_dict(json.loads(text)) == report


def test_json_without_details_is_what_it_was_and_can_be_read() -> None:
    report = judged(MEASURED, MEASURED, BROKEN, checked=("interface",))
    values = report.to_dict(details=False)
    assert not {"details", "spread", "own_spread", "checked", "seconds"} & set(values)
    assert GraphReport.from_dict(values) == replace(report, details=(), spread=(), own_spread=(), checked=())
    del values["notes"]  # as older versions wrote it
    for finding in values["findings"]:
        del finding["case"]
    assert GraphReport.from_dict(values).findings[0].case == ""


def test_as_text_it_is_the_same_json_whatever_stands_in_it() -> None:
    evil = Finding("rounding", '"details": "@0", "spread": "@1" ключ', "00")
    report = ParityReport((judged(MEASURED, BROKEN, findings=[evil]), PASSED, FAILED))
    assert json.loads(report.to_json()) == json.loads(json.dumps(report.to_dict()))


def test_infinity_is_null_in_json() -> None:
    values = FAILED.to_dict()
    assert (values["worst_ratio"], values["max_abs_error"], values["passed"]) == (None, None, False)


@pytest.mark.parametrize("graphs", [(), (PASSED,), (PASSED, FAILED), (FAILED,)])
def test_json_keeps_a_parity_report(graphs: tuple[GraphReport, ...]) -> None:
    report = ParityReport(graphs)
    values = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert ParityReport.from_dict(values) == report
    assert values["passed"] is report.passed
    assert len(values["graphs"]) == len(graphs)


def test_a_parity_report_has_passed_when_all_graphs_have_and_there_is_one() -> None:
    assert ParityReport((PASSED, PASSED)).passed
    assert not ParityReport(()).passed
    assert not ParityReport((PASSED, FAILED)).passed
    assert not ParityReport((FAILED, PASSED)).passed


def test_what_json_says_of_passed_is_not_believed() -> None:
    values = ParityReport((FAILED,)).to_dict()
    values["passed"] = True
    assert not ParityReport.from_dict(values).passed


# --- the interface ---------------------------------------------------------------------------------------------------

HONEST = {"x": ("int64", ("batch", "source")), "mask": ("bool", ("batch", "source"))}
GIVEN = {"y": ("float32", ("batch", 8))}


def problems(inputs: dict[str, Any], outputs: dict[str, Any]) -> list[str]:
    findings = check_interface(CONTRACT, Description("a runtime", "1", inputs, outputs))
    assert {finding.check for finding in findings} <= {"interface"}
    return [finding.message for finding in findings]


def test_the_contracts_own_interface_is_right() -> None:
    assert problems(HONEST, GIVEN) == []


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"mask": HONEST["mask"]}, "input x is missing from the file"),
        ({**HONEST, "extra": HONEST["x"]}, "input extra is not in the contract"),
        ({**HONEST, "x": ("int32", ("batch", "source"))}, "input x is int32, the contract says int64"),
        ({**HONEST, "x": ("int64", (2, "source"))}, "input x is [2, 'source'], the contract says ['batch', 'source']"),
        ({**HONEST, "x": ("int64", ("source", "batch"))}, "input x is ['source', 'batch'], the contract says"),
        ({**HONEST, "x": ("int64", (None, "source"))}, "input x is [None, 'source'], the contract says"),
        ({**HONEST, "x": ("int64", ("batch",))}, "input x is ['batch'], the contract says"),
        (dict(reversed(HONEST.items())), "the inputs stand in the order mask, x, the contract says x, mask"),
    ],
)
def test_an_input_that_is_not_the_contracts_is_named(inputs: dict[str, Any], message: str) -> None:
    (found,) = problems(inputs, GIVEN)
    assert found.startswith(message)


@pytest.mark.parametrize(
    ("outputs", "count"),
    [
        ({}, 1),
        ({"z": GIVEN["y"]}, 2),
        ({**GIVEN, "z": GIVEN["y"]}, 1),
        ({"y": ("float16", ("batch", 8))}, 1),
        ({"y": ("float64", ("batch", "d"))}, 2),
    ],
)
def test_an_output_that_is_not_the_contracts_is_named(outputs: dict[str, Any], count: int) -> None:
    found = problems(HONEST, outputs)
    assert len(found) == count
    assert all(message.startswith("output ") for message in found)
