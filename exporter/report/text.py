"""A report as text: a summary in one sentence, a table of the files, and what is wrong with each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..formats.table import label
from ..parity.compare import EXACT, FACTOR
from ..parity.report import EARLIER, REFERENCE, GraphReport, ParityReport, by_file, rank
from .summary import (
    FAILED,
    NOT_JUDGED,
    PASSED,
    by_line,
    error_of,
    percent,
    sentence,
    share_of,
    shown,
    shown_worst,
    verdict_of,
)

WHEREVER = ("place", "weights")  # findings that are the same in every runtime
VERDICTS = {PASSED: "[green]passed[/]", NOT_JUDGED: "[yellow]not judged[/]", FAILED: "[red]FAILED[/]"}
COLOURS = {"Passed": "green", "Not proven": "yellow", "FAILED": "red"}
UNBOUNDED = 10_000  # characters: the width of a line that is read by a program
RATIO = (
    f"ratio: the largest error in units of PyTorch's own float32 error; up to {FACTOR:g} is allowed in float32, "
    f"{EXACT:g} in float64"
)


def short(path: Path) -> str:
    """``path`` as it is or relative to the current folder, whichever is shorter."""
    try:
        return min(os.path.relpath(path), str(path), key=len)
    except OSError:
        return str(path)


def print_report(
    console: Console, report: ParityReport, *, rest: str = "in parity.json", verbose: bool = False
) -> None:
    """Print the summary in one sentence, the table of files, and what is wrong or was not compared.

    Args:
        console: where to print.
        report: what verification found.
        rest: where the findings are that are not printed.
        verbose: print a table of all runs, too.
    """
    verdict, about = sentence(report)
    console.print(f"[{COLOURS[verdict]} bold]{verdict}:[/] {escape(about)}.", soft_wrap=not console.is_terminal)
    if report.graphs:
        console.print()
        print_table(console, result_table(report.graphs))
    for one in report.task:
        colour = "green" if one.passed else "red"
        console.print(
            f"[{colour}]{escape(one.file)}[/]: {escape('; '.join(one.lines))}", soft_wrap=not console.is_terminal
        )
    if report.graphs and verbose:
        console.print()
        print_table(console, runs_table(report.graphs))
        console.print(f"[dim]{escape(RATIO)}[/]", soft_wrap=not console.is_terminal)
    if report.graphs:
        console.print()
    print_findings(console, report.graphs, rest)


def result_table(reports: Sequence[GraphReport]) -> Table:
    """One row for each file, over all its runs, and one for the PyTorch model."""
    rows = [
        (name, verdict_of(runs), f"{sum(run.cases for run in runs):,}", shown(error_of(runs)), percent(share_of(runs)))
        for name, runs in by_line(reports).items()
    ]
    return _table(("file", "result", "comparisons", "largest error", "of what is allowed"), rows)


def runs_table(reports: Sequence[GraphReport]) -> Table:
    """One row for each run of each file: in which runtime, on how many cases, with which ratio."""
    rows: list[tuple[str, ...]] = []
    for (graph, format_name), runs in by_file(reports).items():
        rows.append((label(graph, format_name),))
        for run in runs:
            ratio = shown_worst(run.worst_ratio)
            numbers = (f"{run.cases:,}", shown(run.max_abs_error), ratio, f"{run.allowed:g}")
            rows.append((f"  {run.runtime}", verdict_of([run]), *numbers))
    return _table(("run", "result", "cases", "error", "ratio", "allowed"), rows)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table with a name and a verdict in each row, then numbers. A row with a name alone is a heading."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    longest = max(cell_len(row[0]) for row in rows)
    table.add_column(titles[0], no_wrap=True, min_width=longest)
    table.add_column(titles[1], no_wrap=True)
    for title in titles[2:]:
        table.add_column(title, justify="right")
    for name, *cells in rows:
        table.add_row(escape(name), *(VERDICTS.get(cell, cell) for cell in cells), style="" if cells else "bold")
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table. On a narrow terminal the titles wrap; names are printed whole, whatever the width."""
    needed = console.measure(table, options=console.options.update(width=UNBOUNDED))
    table.width = max(needed.minimum, min(needed.maximum, console.width if console.is_terminal else UNBOUNDED))
    console.print(table, crop=False)


def print_findings(console: Console, reports: Sequence[GraphReport], rest: str = "in parity.json") -> None:
    """Print one finding of each check for each file, with its runtimes, and where the rest of the findings is."""
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
