"""JUnit XML: each finding fails exactly one test, under the name where a reader expects it."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from made_reports import EVIL, GROUPS, doubted, lifted, report, row, unloadable
from mytx.exporter.parity.report import Finding, GraphReport, ParityReport
from mytx.exporter.report.junit import junit_xml

VERSIONS = {"mytx": "0.1.0"}


def parsed(found: ParityReport) -> ElementTree.Element:
    return ElementTree.fromstring(junit_xml(found, VERSIONS))


def failures(found: ParityReport) -> dict[str, str]:
    """The text of each failure, by its class and test."""
    tests = parsed(found).iter("testcase")
    return {
        f"{test.get('classname')} | {test.get('name')}": failure.text or ""
        for test in tests
        for failure in test.iter("failure")
    }


def test_a_report_that_passed_has_no_failures_and_a_test_for_each_group_and_check() -> None:
    root = parsed(report(row(), lifted()))
    assert (root.tag, root.get("failures"), root.get("errors")) == ("testsuites", "0", "0")
    tests = [(test.get("classname"), test.get("name")) for test in root.iter("testcase")]
    expected = ["weights"]
    for runtime in ("onnxruntime", "onnx.reference, float64"):
        names = ("loading and running", "interface", *dict.fromkeys(GROUPS))
        expected += [f"{runtime}: {name}" for name in names]
    assert tests == [("parity.encoder.onnx", name) for name in expected]
    assert int(root.get("tests", "")) == len(tests)


def test_weights_that_nobody_looked_at_have_no_test_that_passes() -> None:
    names = [test.get("name") for test in parsed(report(row(checked=("runtime", "interface")))).iter("testcase")]
    assert "weights" not in names


FINDINGS = {
    "weights": (Finding("weights", "a weight differs"), "weights"),
    "interface": (Finding("interface", "input src is missing"), "onnxruntime: interface"),
    "an interface in a case": (Finding("interface", "shape [1]", "02"), "onnxruntime: disturbed"),
    "rounding": (Finding("rounding", "off", "03"), "onnxruntime: identities"),
    "structure": (Finding("structure", "off", "00"), "onnxruntime: shapes"),
    "not judged": (Finding("not judged", "noisy", "05"), "onnxruntime: own"),
    "a case that stopped": (Finding("runtime", "no memory", "04"), "onnxruntime: steps"),
    "loading": (Finding("runtime", "cannot load"), "onnxruntime: loading and running"),
    "a place": (Finding("place", "layer 1 leaves the model"), "onnxruntime: place"),
    "nothing compared": (Finding("rounding", "nothing was compared"), "onnxruntime: rounding"),
    "a case that is not in the details": (Finding("rounding", "off there", "99"), "onnxruntime: rounding"),
    "a check of tomorrow": (Finding("colour", "green"), "onnxruntime: colour"),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_a_finding_fails_the_test_in_which_one_looks_for_it_and_no_other(name: str) -> None:
    finding, place = FINDINGS[name]
    found = failures(report(row(finding), lifted()))
    assert found == {f"parity.encoder.onnx | {place}": f"{finding.check}: {finding.message}"}


def test_all_findings_of_a_test_are_in_it_and_none_is_lost() -> None:
    findings = [finding for finding, _ in FINDINGS.values()] + [Finding("rounding", "off again", "03")]
    rows = row(*findings), lifted(*findings)
    found = failures(report(*rows))
    for finding in findings:
        told = [text for text in found.values() if f"{finding.check}: {finding.message}" in text.splitlines()]
        assert len(told) == (1 if finding.check == "weights" else 2)
    assert found["parity.encoder.onnx | onnxruntime: identities"].splitlines() == [
        "rounding: off",
        "rounding: off again",
    ]


@pytest.mark.parametrize(
    "rows",
    [
        [row()],
        [row(), lifted()],
        [],
        [doubted()],
        [row(), doubted()],
        [unloadable()],
        [row(), replace(row(), passed=False)],
        [replace(row(), passed=False, details=(), checked=())],
        *([row(), row(finding, graph="decoder")] for finding, _ in FINDINGS.values()),
    ],
)
def test_something_fails_if_and_only_if_the_report_has_not_passed(rows: list[GraphReport]) -> None:
    found = report(*rows)
    root = parsed(found)
    count = int(root.get("failures", ""))
    assert (count > 0) is not found.passed
    assert count == len(list(root.iter("failure")))
    for suite in root:
        assert int(suite.get("failures", "")) == len(list(suite.iter("failure")))
        assert int(suite.get("tests", "")) == len(list(suite.iter("testcase")))


def test_a_file_that_was_not_loaded_fails_in_loading_and_in_every_group_that_was_not_run() -> None:
    found = failures(report(unloadable()))
    names = ["loading and running", *dict.fromkeys(GROUPS)]
    assert list(found) == [f"parity.encoder.onnx | onnxruntime: {name}" for name in names]
    assert "gave no result" in found["parity.encoder.onnx | onnxruntime: shapes"]


def test_each_file_is_a_suite_and_the_model_itself_too() -> None:
    rows = [row(), row(format="torchscript"), row(graph="full"), row(format="eager", runtime="PyTorch")]
    names = [suite.get("name") for suite in parsed(report(*rows))]
    assert names == ["parity.encoder.onnx", "parity.encoder.ts.pt", "parity.full.onnx", "parity.encoder, PyTorch"]


def test_what_xml_cannot_hold_is_written_out_and_the_rest_is_as_it_was() -> None:
    finding = Finding("rounding", f"{EVIL} наоборот 😀", "03")
    root = parsed(report(row(finding, runtime=EVIL)))
    (failure,) = root.iter("failure")
    expected = '<script>alert("1")</script>\\x1b[31m\\x00\\ud800 & \\ufffe наоборот 😀'
    assert failure.get("message") == expected
    assert failure.text == f"rounding: {expected}"


def test_versions_and_time_are_in_every_suite_and_the_time_stands_once() -> None:
    root = parsed(report(row(), lifted(), row(graph="full")))
    assert root.get("time") == "4.500"
    for suite in root:
        assert [(item.get("name"), item.get("value")) for item in suite.iter("property")] == [("mytx", "0.1.0")]
        times = [float(test.get("time", "")) for test in suite.iter("testcase")]
        assert sum(times) == float(suite.get("time", ""))


def test_the_elements_are_those_of_the_schema_in_its_order() -> None:
    """What Jenkins' junit-10.xsd allows: properties first, then tests; at most one outcome in a test."""
    root = parsed(report(row(Finding("rounding", "off", "03")), lifted()))
    for suite in root:
        assert suite.tag == "testsuite"
        assert [element.tag for element in suite] == ["properties"] + ["testcase"] * (len(suite) - 1)
        assert set(suite.attrib) == {"name", "tests", "failures", "errors", "skipped", "time"}
        for test in suite.iter("testcase"):
            assert set(test.attrib) == {"classname", "name", "time"}
            assert [element.tag for element in test] in ([], ["failure"])
            assert all(set(element.attrib) == {"type", "message"} for element in test)
        names = [test.get("name") for test in suite.iter("testcase")]
        assert len(set(names)) == len(names)
