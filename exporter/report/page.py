"""``parity.html``: what was proven, as one page that needs nothing else. No torch here; jinja2 only when it is used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..bundle.manifest import Manifest
from ..formats.table import FORMATS, label
from ..parity.compare import EXACT, FACTOR, FAIL, NOT_JUDGED, PASS
from ..parity.report import NO_RESULT, Finding, GraphReport, ParityReport, by_file, rank, shown_ratio
from ..parity.spread import add_spreads
from .plots import Histogram, Plot, RunCase, histogram_of, plots_of, shown

PAGE = "parity.html"
TEMPLATES = Path(__file__).parent / "templates"
LEAST_SHOWN = 3  # of what is wrong with a file, without unfolding; and something of each check
MOST_FAILURES = 60  # of a file that are listed; all are in parity.json
NAMES = {
    "place": "Where it begins",
    "weights": "Weights",
    "interface": "Interface",
    "structure": "Structure (run in float64)",
    "rounding": "Rounding (run in float32)",
    "runtime": "Loading and running",
    "not judged": "Not judged",
}


@dataclass(frozen=True)
class Failure:
    """One thing that is wrong: what kind, in which case and output, in which ways to run the file, and the words."""

    check: str
    case: str
    output: str
    message: str
    runtimes: tuple[str, ...]


@dataclass(frozen=True)
class FilePart:
    """What the page says of one file.

    Attributes:
        anchor, name, sha256: of the file.
        is_file: whether it is one, and not the model itself in PyTorch.
        verdict: ``passed``, ``not judged`` or ``failed``.
        ways, runs, compared: in how many ways it was run, how many cases in all, how many numbers were compared.
        error, ratio, exact: the largest error and ratio in float32, and the largest ratio in float64.
        failures, prominent, more: what is wrong, how much of it is always shown, and how much is not listed.
        cases: the plan, each case in the worst of the ways in float32.
        plots, histogram: of the same.
        rows: each way.
        notes: what was not compared.
    """

    anchor: str
    name: str
    sha256: str
    is_file: bool
    verdict: str
    ways: int
    runs: int
    compared: int
    error: float | None
    ratio: float | None
    exact: float | None
    failures: tuple[Failure, ...]
    prominent: int
    more: int
    cases: tuple[RunCase, ...]
    plots: tuple[Plot, ...]
    histogram: Histogram | None
    rows: tuple[GraphReport, ...]
    notes: tuple[str, ...]


def parity_page(
    report: ParityReport | None, manifest: Manifest, *, manifest_sha256: str = "", here: dict[str, str] | None = None
) -> bytes:
    """The page on ``report``.

    Args:
        report: what was found; None where parity was not checked.
        manifest: of the bundle; with the files that there are so far, where the page is to be one of them.
        manifest_sha256: of a bundle that was verified again.
        here: likewise, the versions of what verified it.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": shown, "ratio": _ratio, "grouped": _grouped}
    digests = {entry.path: entry.sha256 for entry in manifest.files}
    parts = [_part(*file, rows, digests) for file, rows in by_file(report.graphs if report else ()).items()]
    text = environment.get_template(PAGE).render(
        parts=parts,
        verdict=_verdict(report),
        failed=[part for part in parts if part.failures],
        worst=_largest([part.ratio for part in parts if part.is_file]),
        worst_exact=_largest([part.exact for part in parts if part.is_file]),
        kind=manifest.model.get("kind", "?"),
        parameters="?" if manifest.parameters is None else manifest.parameters,
        weights_sha256=manifest.weights_sha256 or "?",
        assumed=[tuple(item.get(name) for name in ("name", "value", "source")) for item in manifest.assumed],
        tools=manifest.tools,
        files=manifest.files,
        manifest_sha256=manifest_sha256,
        here=here,
        factor=FACTOR,
        exact=EXACT,
        checks=NAMES,
        page=PAGE,
    )
    return text.encode("utf-8", errors="backslashreplace")  # a path need not be text


def _verdict(report: ParityReport | None) -> str:
    if report is None:
        return "not verified"
    return "passed" if report.passed else "not proven" if report.doubted else "failed"


def _part(graph: str, format_name: str, rows: Sequence[GraphReport], digests: dict[str, str]) -> FilePart:
    name = label(graph, format_name)
    single = [row for row in rows if row.allowed == FACTOR]
    double = [row for row in rows if row.allowed != FACTOR]
    passed, doubted = all(row.passed for row in rows), all(row.passed or row.doubted for row in rows)
    failures = _failures(rows)
    cases = _worst_cases(single or rows)
    is_file = format_name in FORMATS
    drawn = bool(cases) and is_file
    return FilePart(
        anchor=f"{graph}-{format_name}",
        name=name,
        sha256=digests.get(name, ""),
        is_file=is_file,
        verdict="passed" if passed else "not judged" if doubted else "failed",
        ways=len(rows),
        runs=sum(row.cases for row in rows),
        compared=sum(row.compared for row in rows),
        error=_largest([row.max_abs_error for row in single]),
        ratio=_largest([row.worst_ratio for row in single]),
        exact=_largest([row.worst_ratio for row in double]),
        failures=tuple(failures[:MOST_FAILURES]),
        prominent=max(LEAST_SHOWN, len({failure.check for failure in failures})),
        more=len(failures[MOST_FAILURES:]),
        cases=tuple(cases),
        plots=tuple(plots_of(cases)) if drawn else (),
        histogram=histogram_of(_sum(single, "spread"), _sum(single, "own_spread")) if drawn else None,
        rows=tuple(rows),
        notes=tuple(dict.fromkeys(note for row in rows for note in row.notes)),
    )


def _failures(rows: Sequence[GraphReport]) -> list[Failure]:
    """Each thing that is wrong once, with the ways in which it shows. First the worst of each check, then the rest."""
    runtimes: dict[tuple[str, str, str], list[str]] = {}
    worst: dict[tuple[str, str, str], tuple[float, Failure]] = {}
    for row in rows:
        details = {case.name: case for case in row.details}
        findings = row.findings if row.findings or row.passed else (Finding("runtime", "it has not passed"),)
        for finding in findings:
            # The numbers of a case differ from runtime to runtime; it is the same output of the same case.
            key = (finding.check, finding.case, finding.message.partition(" at [")[0])
            runtimes.setdefault(key, []).append(row.runtime)
            case = details.get(finding.case)
            ratio, output = (case.ratio, case.output) if case else (math.inf, "")
            if key not in worst or ratio > worst[key][0]:
                worst[key] = ratio, Failure(finding.check, finding.case, output, finding.message, ())
    ordered: list[tuple[bool, int, Failure]] = []
    for key in sorted(worst, key=lambda key: -worst[key][0]):
        failure = replace(worst[key][1], runtimes=tuple(dict.fromkeys(runtimes[key])))
        again = any(other.check == failure.check for _, _, other in ordered)
        ordered.append((again, rank(failure.check), failure))
    return [failure for _, _, failure in sorted(ordered, key=lambda item: item[:2])]


def _worst_cases(rows: Sequence[GraphReport]) -> list[RunCase]:
    """Each case in the way in which it did worst: a verdict before a number."""
    order = (PASS, NOT_JUDGED, NO_RESULT, FAIL)
    worst: dict[str, RunCase] = {}
    for row in rows:
        for case in row.details:
            before = worst.get(case.name)
            rank = (order.index(case.verdict), case.ratio)
            if before is None or rank > (order.index(before.case.verdict), before.case.ratio):
                worst[case.name] = RunCase(case, row.runtime)
    return sorted(worst.values(), key=lambda run: run.case.name)


def _sum(rows: Sequence[GraphReport], name: str) -> tuple[int, ...]:
    return add_spreads([getattr(row, name) for row in rows if getattr(row, name)])


def _largest(numbers: Sequence[Any]) -> float | None:
    """None where there is no number; infinity where one of them is none."""
    return max((number for number in numbers if number is not None), default=None)


def _ratio(number: float | None) -> str:
    if number is None:
        return "-"
    if not math.isfinite(number):
        return "no number"
    return shown_ratio(number)


def _grouped(number: Any) -> str:
    return f"{number:,}" if isinstance(number, int) else str(number)
