"""A report in one sentence and one line for each file, for the terminal and for ``parity.html``. No torch here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ..formats.table import FORMATS, label
from ..parity.compare import FACTOR
from ..parity.report import EARLIER, REFERENCE, GraphReport, ParityReport, by_file, shown_ratio

MODEL = "PyTorch model"  # its own checks are a line of the table, too
PASSED, NOT_JUDGED, FAILED = "passed", "not judged", "failed"


def by_line(reports: Sequence[GraphReport]) -> dict[str, list[GraphReport]]:
    """The runs of each line of the table, by its name: the files, then the PyTorch model, then each ``--reference``."""
    lines: dict[str, list[GraphReport]] = {}
    others: dict[str, list[GraphReport]] = {}
    for (graph, format_name), rows in by_file(reports).items():
        if format_name in FORMATS:
            lines[label(graph, format_name)] = rows
        for row in rows if format_name not in FORMATS else ():
            name = row.runtime.removesuffix(EARLIER) if row.runtime.startswith(REFERENCE) else MODEL
            others.setdefault(name, []).append(row)
    return lines | dict(sorted(others.items(), key=lambda item: item[0] != MODEL))


def is_file(rows: Sequence[GraphReport]) -> bool:
    """Whether these are runs of a file, and not of the model in PyTorch."""
    return rows[0].format in FORMATS


def verdict_of(rows: Iterable[GraphReport]) -> str:
    """The verdict on all ``rows`` together: ``passed``, ``not judged`` or ``failed``."""
    verdicts = {PASSED if row.passed else NOT_JUDGED if row.doubted else FAILED for row in rows}
    return next((verdict for verdict in (FAILED, NOT_JUDGED) if verdict in verdicts), PASSED)


def error_of(rows: Sequence[GraphReport]) -> float:
    """The largest absolute error in float32, or in float64 if nothing ran in float32; infinite without a number."""
    return _largest([row.max_abs_error for row in rows if row.allowed == FACTOR] or [row.max_abs_error for row in rows])


def share_of(rows: Sequence[GraphReport]) -> float:
    """The largest error as a share of the error that is allowed, over all runs; 1 is the limit."""
    return _largest([row.worst_ratio / row.allowed for row in rows])


def _largest(numbers: Sequence[float]) -> float:
    return max(numbers) if all(map(math.isfinite, numbers)) else math.inf


def shown(number: float | None) -> str:
    """A number as it is printed; words for infinity and NaN."""
    if number is None:
        return "-"
    if not math.isfinite(number):
        return "no number"
    return f"{number:.1e}" if 0 < number < 1e-3 else f"{number:.2g}"


def shown_worst(ratio: float) -> str:
    """A ratio as it is printed; words for infinity and NaN."""
    return shown_ratio(ratio) if math.isfinite(ratio) else shown(ratio)


def percent(share: float) -> str:
    """A share in percent. Only 0 is 0 %, and a share above the limit is never rounded down to 100 %."""
    if not math.isfinite(share):
        return "no number"
    if share >= 1e4:
        return "> 999,999 %"
    whole = math.ceil(100 * share) if share > 1 or 0 < share < 0.01 else round(100 * share)
    return f"{whole:,} %"


def sentence(report: ParityReport) -> tuple[str, str]:
    """The verdict in one or two words, and the rest of the sentence: how many files, and the largest error."""
    lines = by_line(report.graphs)
    below = [one for one in report.task if not one.passed]
    files = {name: rows for name, rows in lines.items() if is_file(rows)}
    rows = [row for found in files.values() for row in found]
    if report.passed:
        agree = "1 file agrees" if len(files) == 1 else f"{len(files)} files agree"
        return "Passed", (
            f"{agree} with PyTorch in {sum(row.cases for row in rows):,} comparisons; "
            f"largest error {shown(error_of(rows))}, at most {percent(share_of(rows))} of what is allowed"
        )
    if report.doubted:
        return "Not proven", (
            "nothing is known to be wrong, but PyTorch's own float32 error is too large to judge "
            f"{', '.join(name for name, found in lines.items() if verdict_of(found) == NOT_JUDGED)}"
        )
    problems = _problems(lines, len(files)) + [f"{one.file} misses the target on {one.data}" for one in below]
    return "FAILED", "; ".join(problems) or "nothing was verified"


def _problems(lines: Mapping[str, Sequence[GraphReport]], total: int) -> list[str]:
    """What is wrong, with the names of the files."""
    files: dict[tuple[str, str], list[str]] = {}  # by the verb, in singular and plural
    others = []
    for name, rows in lines.items():
        verdict = verdict_of(rows)
        if verdict != PASSED and is_file(rows):
            files.setdefault(_verb(rows), []).append(name)
        elif verdict == NOT_JUDGED:
            others.append(f"the {name} cannot be judged")
        elif verdict == FAILED:
            fails = "fails its own checks" if name == MODEL else f"differs from the {name}"
            others.append(f"the {MODEL} {fails}")
    found = []
    for (one, many), names in files.items():
        count = f"{len(names)} of {total} files" if total > 1 else "1 file"
        found.append(f"{count} {one if len(names) == 1 else many}: {', '.join(names)}")
    return found + others


def _verb(rows: Sequence[GraphReport]) -> tuple[str, str]:
    if verdict_of(rows) == NOT_JUDGED:
        return "cannot be judged", "cannot be judged"
    checks = {finding.check for row in rows if not row.doubted for finding in row.findings}
    return ("fails to run", "fail to run") if checks == {"runtime"} else ("differs from PyTorch", "differ from PyTorch")
