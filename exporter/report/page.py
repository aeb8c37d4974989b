"""``parity.html``: the report as one page without scripts or other files. No torch here; jinja2 is loaded on use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..bundle.manifest import Manifest
from ..formats.table import FORMATS, label
from ..parity.compare import EXACT, FACTOR, FAIL, NOT_JUDGED, PASS
from ..parity.report import NO_RESULT, Finding, GraphReport, ParityReport, by_file, rank
from ..parity.spread import add_spreads
from .plots import Histogram, Plot, RunCase, histogram_of, plots_of
from .summary import FAILED, PASSED, error_of, percent, share_of, shown, shown_worst, verdict_of

PAGE = "parity.html"
TEMPLATES = Path(__file__).parent / "templates"
LEAST_SHOWN = 3  # failures of a file that are shown unfolded; at least one for each check
MOST_FAILURES = 60  # listed failures of a file; parity.json has all
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
    """One failure.

    Attributes:
        check: name of the check that found it.
        case, output: name of the case and of the output; empty if it concerns no single one.
        message: what is wrong, in one line.
        runtimes: the runs of the file that show it.
    """

    check: str
    case: str
    output: str
    message: str
    runtimes: tuple[str, ...]


@dataclass(frozen=True)
class FilePart:
    """What the page says about one file.

    Attributes:
        anchor, name, sha256: id of the section on the page, name and hash of the file.
        is_file: False for the model itself in PyTorch.
        verdict: ``passed``, ``not judged`` or ``failed``.
        ways, runs, compared: number of runtimes and settings, of runs of a case in all of them, of compared numbers.
        error: the largest absolute error in float32.
        share: the largest error as a share of the allowed error; 1 is the limit.
        failures: what is wrong, the most telling first.
        prominent: how many failures are shown unfolded.
        more: how many failures are not listed.
        cases: each case of the plan in its worst float32 run.
        plots, histogram: plots of the same runs.
        rows: all runs.
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
    error: float
    share: float
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
    """Render ``report`` as HTML.

    Args:
        report: what verification found; None if nothing was verified.
        manifest: the bundle's manifest. During an export it lists the files written so far.
        manifest_sha256: digest of the manifest, for a bundle that was verified again.
        here: versions of the tools that verified it again.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": shown, "ratio": shown_worst, "percent": percent, "grouped": _grouped}
    digests = {entry.path: entry.sha256 for entry in manifest.files}
    parts = [_part(*file, rows, digests) for file, rows in by_file(report.graphs if report else ()).items()]
    text = environment.get_template(PAGE).render(
        parts=parts,
        verdict=_verdict(report),
        failed=[part for part in parts if part.failures],
        error=max((part.error for part in parts if part.is_file), default=None),
        share=max((part.share for part in parts if part.is_file), default=0.0),
        kind=manifest.model.get("kind", "?"),
        parameters="?" if manifest.parameters is None else manifest.parameters,
        weights_sha256=manifest.weights_sha256 or "?",
        assumed=[tuple(item.get(name) for name in ("name", "value", "source")) for item in manifest.assumed],
        tools=manifest.tools,
        files=manifest.files,
        manifest_sha256=manifest_sha256,
        here=here,
        task=report.task if report else (),
        rounded=any(FORMATS[row.format].made_of for row in report.graphs if row.format in FORMATS) if report else False,
        factor=FACTOR,
        exact=EXACT,
        checks=NAMES,
        page=PAGE,
    )
    return text.encode("utf-8", errors="backslashreplace")  # a path need not be text


def _verdict(report: ParityReport | None) -> str:
    if report is None:
        return "not verified"
    return PASSED if report.passed else "not proven" if report.doubted else FAILED


def _part(graph: str, format_name: str, rows: Sequence[GraphReport], digests: dict[str, str]) -> FilePart:
    name = label(graph, format_name)
    single = [row for row in rows if row.allowed == FACTOR]
    failures = _failures(rows)
    cases = _worst_cases(single or rows)
    is_file = format_name in FORMATS
    drawn = bool(cases) and is_file
    return FilePart(
        anchor=f"{graph}-{format_name}",
        name=name,
        sha256=digests.get(name, ""),
        is_file=is_file,
        verdict=verdict_of(rows),
        ways=len(rows),
        runs=sum(row.cases for row in rows),
        compared=sum(row.compared for row in rows),
        error=error_of(rows),
        share=share_of(rows),
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
    """Each failure once, with the runs that show it. First the worst failure of each check, then the rest."""
    runtimes: dict[tuple[str, str, str], list[str]] = {}
    worst: dict[tuple[str, str, str], tuple[float, Failure]] = {}
    for row in rows:
        details = {case.name: case for case in row.details}
        findings = row.findings if row.findings or row.passed else (Finding("runtime", "it has not passed"),)
        for finding in findings:
            # The position and the numbers may differ between runs; same case and output count as one failure.
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
    """Each case in its worst run. The verdict counts first, then the ratio."""
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


def _grouped(number: Any) -> str:
    return f"{number:,}" if isinstance(number, int) else str(number)
