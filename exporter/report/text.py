"""A report as text: the table of the files, and what is wrong with each."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..formats.table import label
from ..parity.compare import EXACT, FACTOR
from ..parity.report import EARLIER, REFERENCE, GraphReport, by_file, rank, shown_ratio

WHEREVER = ("place", "weights")  # not a matter of the runtime


def short(path: Path) -> str:
    """``path`` from the current folder, if there is one and that is shorter."""
    try:
        return min(os.path.relpath(path), str(path), key=len)
    except OSError:
        return str(path)


def result_table(reports: Sequence[GraphReport]) -> Table:
    """One row for each file: the worst of all ways that it was run in, in float32 and in float64."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("file")
    for title in ("ways", "cases", "max error", "worst ratio", "in float64"):
        table.add_column(title, justify="right")
    table.add_column("")
    for (graph, format_name), rows in by_file(reports).items():
        single = [row for row in rows if row.allowed == FACTOR]
        double = [row for row in rows if row.allowed != FACTOR]
        passed, doubted = all(row.passed for row in rows), all(row.passed or row.doubted for row in rows)
        table.add_row(
            escape(label(graph, format_name)),
            str(len(rows)),
            str(sum(row.cases for row in rows)),
            _largest([row.max_abs_error for row in single], lambda error: f"{error:.1e}"),
            _largest([row.worst_ratio for row in single], lambda ratio: f"{shown_ratio(ratio)} of {FACTOR:g}"),
            _largest([row.worst_ratio for row in double], lambda ratio: f"{shown_ratio(ratio)} of {EXACT:g}"),
            "[green]passed[/]" if passed else "[yellow]not judged[/]" if doubted else "[red]FAILED[/]",
        )
    return table


def _largest(numbers: Sequence[float], show: Callable[[float], str]) -> str:
    """The largest number as it is shown; a dash where there is none, or no number to it."""
    return show(max(numbers)) if numbers and all(map(math.isfinite, numbers)) else "-"


def print_findings(console: Console, reports: Sequence[GraphReport], rest: str = "in parity.json") -> None:
    """What is wrong with each file: one finding of each kind, and in which runtimes; and where the rest is."""
    for (graph, format_name), rows in by_file(reports).items():
        file = escape(label(graph, format_name))
        kinds: dict[str, tuple[str, list[str]]] = {}
        total = set[str]()
        for row in rows:
            for finding in row.findings:
                total.add(finding.message)
                kinds.setdefault(finding.check, (finding.message, []))[1].append(row.runtime)
        for check in sorted(kinds, key=rank):
            message, runtimes = kinds[check]
            ways = list(dict.fromkeys(runtimes))
            special = any(way.startswith(REFERENCE) or way.endswith(EARLIER) for way in ways)
            named = check not in WHEREVER and (special or len(ways) < len(rows))
            where = f" ({', '.join(ways)})" if named else ""
            text = f"[red]{file}[/], {check}{escape(where)}: {escape(message)}"
            console.print(text, soft_wrap=not console.is_terminal)
        notes = list(dict.fromkeys(note for row in rows for note in row.notes))
        if notes:
            others = f" (and {len(notes) - 1} more, {rest})" if len(notes) > 1 else ""
            console.print(
                f"[yellow]{file}[/], not compared: {escape(notes[0])}{others}", soft_wrap=not console.is_terminal
            )
        more = len(total) - len(kinds)
        if more > 0:
            console.print(f"[red]… and {more} more[/] of {file}, all {rest}")
