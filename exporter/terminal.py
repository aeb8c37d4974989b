"""What people see: progress on stderr, the table of a result."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

if TYPE_CHECKING:
    from .check import BundleCheck
    from .pipeline import ExportResult
    from .report import GraphReport

SHOWN_FINDINGS = 2


class Progress:
    """Says on stderr what is being done, while it is being done; silent where that is not a terminal."""

    def __init__(self, *, shown: bool = True) -> None:
        self._status: Status | None = None
        if shown and sys.stderr and sys.stderr.isatty():  # not what rich thinks: FORCE_COLOR makes no terminal of a log
            self._status = Console(stderr=True).status("Starting")

    def __enter__(self) -> Progress:
        if self._status:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status:
            self._status.stop()

    def __call__(self, message: str) -> None:
        if self._status:
            self._status.update(f"{escape(message)} …")


def print_result(result: ExportResult, *, to_stderr: bool = False) -> None:
    """A table of the graphs, what failed and what was assumed, and the verdict last."""
    console = Console(stderr=to_stderr, highlight=False)
    if result.report:
        console.print(result_table(result.report.graphs))
        for report in result.report.graphs:
            print_findings(console, report)
    if result.assumed:
        wraps = console.is_terminal  # at words, for people; elsewhere a line stays a line
        by_source: dict[str, list[str]] = {}
        for item in result.assumed:
            by_source.setdefault(item["source"], []).append(f"{item['name']}={item['value']}")
        parts = "; ".join(f"{source}: {', '.join(values)}" for source, values in by_source.items())
        console.print(f"[yellow]Assumed[/], as the checkpoint does not say. {escape(parts)}", soft_wrap=not wraps)
    total = f"{sum(result.seconds.values()):.0f} s"
    place = escape(_short(result.bundle))
    if result.passed is None:
        console.print(f"[yellow bold]Not verified.[/] {place}  ({total})", soft_wrap=True)
    elif result.passed:
        console.print(f"[green bold]Passed.[/] {place}  ({total})", soft_wrap=True)
    elif result.report and all(graph.passed or graph.doubted for graph in result.report.graphs):
        console.print(
            "[yellow bold]Not proven.[/] Nothing is known to be wrong, but PyTorch's own float32 is too far off its "
            f"float64 to judge by. The files are in {place}  ({total})",
            soft_wrap=not console.is_terminal,
        )
    else:
        console.print(f"[red bold]Parity failed.[/] The files are in {place}  ({total})", soft_wrap=True)


def print_check(result: BundleCheck, *, to_stderr: bool = False) -> None:
    """The same for a bundle that was verified again."""
    console = Console(stderr=to_stderr, highlight=False)
    console.print(result_table(result.report.graphs))
    for report in result.report.graphs:
        print_findings(console, report)
    verdict = "[green bold]Passed.[/]" if result.passed else "[red bold]Parity failed.[/]"
    place = escape(_short(result.bundle))
    console.print(f"{verdict} {place} is whole, manifest {result.manifest_sha256[:12]}  ({result.seconds:.1f} s)")


def _ratio(ratio: float) -> str:
    """In no more characters than leave the table 80 columns wide."""
    return f"{ratio:.2f}" if ratio < 1000 else f"{ratio:.0e}"


def _short(path: Path) -> str:
    """``path`` from the current folder, if there is one and that is shorter."""
    try:
        return min(os.path.relpath(path), str(path), key=len)
    except OSError:
        return str(path)


def print_inspection(found: dict[str, Any]) -> None:
    """What a path is: titles with lines under them, then the command to run next."""
    console = Console(highlight=False)
    console.print(f"[bold]{escape(found['title'])}[/]", soft_wrap=True)
    for title, lines in found["sections"].items():
        if lines:
            console.print(f"\n[bold]{escape(title)}[/]")
        for line in lines:
            console.print(f"  {escape(line)}", soft_wrap=True)
    if found["next"]:
        console.print(f"\n[bold]Next[/]\n  {escape(found['next'])}", soft_wrap=True)


def result_table(reports: tuple[GraphReport, ...]) -> Table:
    """One row for each graph and runtime."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, justify in (("graph", "left"), ("runtime", "left"), ("cases", "right"), ("max error", "right")):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    table.add_column("worst ratio", justify="right")
    table.add_column("")
    for report in reports:
        table.add_row(
            report.graph,
            report.runtime,
            str(report.cases),
            f"{report.max_abs_error:.1e}" if math.isfinite(report.max_abs_error) else "-",
            f"{_ratio(report.worst_ratio)} of 4" if math.isfinite(report.worst_ratio) else "-",
            "[green]passed[/]" if report.passed else "[yellow]not judged[/]" if report.doubted else "[red]FAILED[/]",
        )
    return table


def print_findings(console: Console, report: GraphReport) -> None:
    """What is wrong with a graph, the first few in full."""
    for finding in report.findings[:SHOWN_FINDINGS]:
        where = f"{report.graph}, {report.runtime}"
        text = f"[red]{escape(where)}[/], {finding.check}: {escape(finding.message)}"
        console.print(text, soft_wrap=not console.is_terminal)
    more = len(report.findings) - SHOWN_FINDINGS
    if more > 0:
        console.print(f"[red]… and {more} more[/], all in parity.json")
