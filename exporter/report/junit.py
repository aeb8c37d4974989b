"""A report as JUnit XML for CI systems: one test for each file, runtime and group of cases.

No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from ..formats.table import label
from ..parity.report import Finding, GraphReport, ParityReport, by_file
from ..parity.task_report import TaskReport

# Characters that XML 1.0 cannot hold, not even escaped: control characters, lone surrogates, U+FFFE and U+FFFF.
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAMES = {"runtime": "loading and running"}  # clearer names of checks
SHOWN = 2000  # characters of a message in the attribute; the element's text has all of it


@dataclass(frozen=True)
class Checked:
    """One test case.

    Attributes:
        name: name of the test, unique in its file.
        findings: what failed; empty if it passed.
        seconds: duration; 0 if it is not known.
    """

    name: str
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0


def junit_xml(report: ParityReport, properties: Mapping[str, str]) -> bytes:
    """Render ``report`` as XML that Jenkins, GitLab and GitHub Actions read.

    A test fails if and only if the report has not passed. "Not judged" is a failure, too: it proves nothing.

    Args:
        report: what verification found.
        properties: versions and hashes, written to every suite.
    """
    root = ElementTree.Element("testsuites", name="parity")
    suites = [
        (f"parity.{label(*file)}", _tests_of(rows), sum(row.seconds for row in rows))
        for file, rows in by_file(report.graphs).items()
    ]
    suites += [(f"task.{one.file}", [_test_of_task(one)], 0.0) for one in report.task]
    if not report.graphs:
        suites = [("parity", [Checked("verification", (Finding("runtime", "nothing was verified"),))], 0.0)]
    for name, tests, seconds in suites:
        _add_suite(root, name, tests, seconds, properties)
    _count(root, [test for _, tests, _ in suites for test in tests], sum(seconds for _, _, seconds in suites))
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _test_of_task(one: TaskReport) -> Checked:
    findings = () if one.passed else (Finding("task", "; ".join(one.lines)),)
    return Checked(f"the same tokens as in float32: {one.data}", findings)


def _tests_of(rows: Sequence[GraphReport]) -> list[Checked]:
    """The tests of one file: its weights, then for each run the groups of cases and the other checks."""
    weights = [finding for row in rows for finding in row.findings if finding.check == "weights"]
    tests = []
    if weights or any("weights" in row.checked for row in rows):
        tests.append(Checked("weights", tuple(dict.fromkeys(weights))))
    for row in rows:
        tests += _tests_of_run(row)
    return tests


def _tests_of_run(row: GraphReport) -> list[Checked]:
    """The tests of one run. A finding fails the group of its case; without a case, it fails the test of its check."""
    group_of = {case.name: case.group for case in row.details}
    groups: dict[str, list[Finding]] = {group: [] for group in group_of.values()}
    checks: dict[str, list[Finding]] = {check: [] for check in row.checked if check != "weights"}
    for finding in row.findings:
        if finding.case in group_of:
            groups[group_of[finding.case]].append(finding)
        elif finding.check != "weights":
            checks.setdefault(finding.check, []).append(finding)
    told = {finding.case for finding in row.findings}
    for case in row.details:
        if not case.passed and case.name not in told:
            groups[case.group].append(
                Finding(case.verdict, f"case {case.name} ({case.words}): {case.message}", case.name)
            )
    if not row.passed and not row.findings and not any(groups.values()):
        checks["parity"] = [Finding("parity", "it has not passed")]
    # The time of the whole run is known, and is written to one test only.
    timed = "runtime" if "runtime" in checks else next(iter(checks), "")
    found = [(check, _NAMES.get(check, check), findings) for check, findings in checks.items()]
    found += [("", group, findings) for group, findings in groups.items()]
    return [
        Checked(f"{row.runtime}: {name}", tuple(findings), row.seconds if check and check == timed else 0.0)
        for check, name, findings in found
    ]


def _add_suite(
    root: ElementTree.Element, name: str, tests: Sequence[Checked], seconds: float, properties: Mapping[str, str]
) -> None:
    suite = ElementTree.SubElement(root, "testsuite", name=_legal(name))
    _count(suite, tests, seconds)
    listed = ElementTree.SubElement(suite, "properties")
    for key, value in properties.items():
        ElementTree.SubElement(listed, "property", name=_legal(key), value=_legal(value))
    for test in tests:
        case = ElementTree.SubElement(suite, "testcase", classname=_legal(name), name=_legal(test.name))
        case.set("time", f"{test.seconds:.3f}")
        if test.findings:  # one element only: some readers allow no second one
            first = test.findings[0]
            more = f" (and {len(test.findings) - 1} more)" if len(test.findings) > 1 else ""
            message = _legal(first.message)[:SHOWN] + more
            failure = ElementTree.SubElement(case, "failure", type=_legal(first.check), message=message)
            failure.text = _legal("\n".join(f"{finding.check}: {finding.message}" for finding in test.findings))


def _count(element: ElementTree.Element, tests: Iterable[Checked], seconds: float) -> None:
    tests = list(tests)
    counts = {"tests": len(tests), "failures": sum(bool(test.findings) for test in tests), "errors": 0, "skipped": 0}
    for name, count in counts.items():
        element.set(name, str(count))
    element.set("time", f"{seconds:.3f}")


def _legal(text: str) -> str:
    """``text`` with escape sequences for the characters that XML cannot hold."""
    return _ILLEGAL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
