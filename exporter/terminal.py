"""What people see: progress on stderr, the table of a result."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from .compare import EXACT, FACTOR
from .contract import CACHED
from .formats import label
from .report import by_file

if TYPE_CHECKING:
    from .benching import BenchResult
    from .check import BundleCheck, BundlePlan
    from .locating import BundleLocated
    from .pipeline import ExportResult
    from .report import GraphReport

SHOWN_PLACES = 3
# What tells most comes first.
ORDER = ("place", "weights", "interface", "structure", "rounding", "not judged", "runtime")
WHEREVER = ("place", "weights")  # not a matter of the runtime


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
        print_findings(console, result.report.graphs)
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
    elif result.report and result.report.doubted:
        console.print(
            "[yellow bold]Not proven.[/] Nothing is known to be wrong, but PyTorch's own float32 is too far off its "
            f"float64 to judge by. The files are in {place}  ({total})",
            soft_wrap=not console.is_terminal,
        )
    else:
        console.print(f"[red bold]Parity failed.[/] The files are in {place}  ({total})", soft_wrap=True)
        _offer_locate(console, result.bundle, result.report.graphs if result.report else ())


def print_check(result: BundleCheck, *, to_stderr: bool = False) -> None:
    """The same for a bundle that was verified again."""
    console = Console(stderr=to_stderr, highlight=False)
    console.print(result_table(result.report.graphs))
    print_findings(console, result.report.graphs)
    verdict = "[green bold]Passed.[/]" if result.passed else "[red bold]Parity failed.[/]"
    place = escape(_short(result.bundle))
    console.print(f"{verdict} {place} is whole, manifest {result.manifest_sha256[:12]}  ({result.seconds:.1f} s)")
    _offer_locate(console, result.bundle, result.report.graphs)


def _offer_locate(console: Console, bundle: Path, reports: Sequence[GraphReport]) -> None:
    """What to run next, where an ONNX file computes something else than the model."""
    plain = [row for row in reports if row.format == "onnx" and row.graph not in CACHED]
    if any("structure" in {finding.check for finding in row.findings} for row in plain):
        console.print(f"Where it begins: mytx-export locate {escape(shlex.quote(_short(bundle)))}", soft_wrap=True)


def _ratio(ratio: float) -> str:
    """In no more characters than leave the table 80 columns wide."""
    return f"{ratio:.2f}" if ratio < 1000 else f"{ratio:.0e}"


def _short(path: Path) -> str:
    """``path`` from the current folder, if there is one and that is shorter."""
    try:
        return min(os.path.relpath(path), str(path), key=len)
    except OSError:
        return str(path)


def print_located(result: BundleLocated, *, to_stderr: bool = False) -> None:
    """The first place of each graph, what follows from it, and where its reproduction is."""
    console = Console(stderr=to_stderr, highlight=False)
    wraps = console.is_terminal
    for located in result.graphs:
        if not located.introduced:
            console.print(
                f"[green]{located.graph}[/]: computes what the model computes, at all {located.compared} places that "
                "were compared, in float64. What differs in a runtime is that runtime's doing",
                soft_wrap=not wraps,
            )
        for place in located.introduced[:SHOWN_PLACES]:
            where = place.module or "the model's own code"
            console.print(
                f"[red bold]{located.graph}[/]: [bold]{escape(where)}[/] introduces an error of {place.error:.2g}, "
                f"{place.allowed:.2g} allowed, in {escape(place.value)} by {escape(place.node or 'no node')}; "
                f"{escape(place.case)}",
                soft_wrap=not wraps,
            )
        if len(located.introduced) > SHOWN_PLACES:
            console.print(f"  and {len(located.introduced) - SHOWN_PLACES} more places, see --json")
        if located.unmatched:
            console.print(
                f"  {len(located.unmatched)} modules were not found by the names of the nodes, and only what is around "
                "them was compared",
                soft_wrap=not wraps,
            )
        if located.introduced and located.passed_on:
            console.print(f"  passed on by {len(located.passed_on)} modules that introduce none", soft_wrap=True)
        if located.graph in result.reproductions:
            folder = escape(_short(result.reproductions[located.graph]))
            console.print(f"  reproduction: python {folder}/reproduce.py", soft_wrap=True)


def print_bench(result: BenchResult, *, to_stderr: bool = False) -> None:
    """A table of the ways to decode, and what was measured."""
    console = Console(stderr=to_stderr, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("decoded by")
    for title in ("beams", "tokens/s", "ms a step", "of memory bound", "same ids"):
        table.add_column(title, justify="right")
    for row in result.rows:
        table.add_row(
            row.name,
            str(row.beams),
            f"{row.tokens_per_second:,.0f}",
            f"{1000 * row.seconds / result.steps:.2f}",
            "-" if row.share is None else f"{100 * row.share:.0f} %",
            f"{100 * row.same_ids:.0f} %",
        )
    console.print(table)
    threads = f"{result.threads} threads" if result.threads else "all threads"
    read = f"; {result.step_bytes / 1e6:,.1f} MB of weights a step" if result.step_bytes else ""
    console.print(
        f"Batch {result.batch}, source {result.length}, {result.steps} steps, {threads}, median of {result.rounds}"
        f"{read}; memory reads {result.bandwidth / 1e9:.1f} GB/s",
        soft_wrap=True,
    )
    for note in result.notes:
        console.print(f"[yellow]Note:[/] {escape(note)}", soft_wrap=True)


def print_plan(plan: BundlePlan, *, to_stderr: bool = False) -> None:
    """The cases of each graph."""
    console = Console(stderr=to_stderr, highlight=False)
    for name, cases in plan.graphs.items():
        console.print(f"[bold]{escape(name)}[/]  {len(cases)} cases")
        for case in cases:
            console.print(f"  {case['name']}  {case['group']:<11}  {escape(case['words'])}", soft_wrap=True)


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


def result_table(reports: Sequence[GraphReport]) -> Table:
    """One row for each file: the worst of all ways that it was run in, in float32 and in float64."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("file")
    for title in ("ways to run", "cases", "max error", "worst ratio", "in float64"):
        table.add_column(title, justify="right")
    table.add_column("")
    for (graph, format_name), rows in by_file(reports).items():
        single = [row for row in rows if row.allowed == FACTOR]
        double = [row for row in rows if row.allowed != FACTOR]
        passed, doubted = all(row.passed for row in rows), all(row.passed or row.doubted for row in rows)
        table.add_row(
            label(graph, format_name),
            str(len(rows)),
            str(sum(row.cases for row in rows)),
            _largest([row.max_abs_error for row in single], lambda error: f"{error:.1e}"),
            _largest([row.worst_ratio for row in single], lambda ratio: f"{_ratio(ratio)} of {FACTOR:g}"),
            _largest([row.worst_ratio for row in double], lambda ratio: f"{_ratio(ratio)} of {EXACT:g}"),
            "[green]passed[/]" if passed else "[yellow]not judged[/]" if doubted else "[red]FAILED[/]",
        )
    return table


def _largest(numbers: Sequence[float], show: Callable[[float], str]) -> str:
    """The largest number as it is shown; a dash where there is none, or no number to it."""
    return show(max(numbers)) if numbers and all(map(math.isfinite, numbers)) else "-"


def print_findings(console: Console, reports: Sequence[GraphReport]) -> None:
    """What is wrong with each file: one finding of each kind, and in which runtimes."""
    for (graph, format_name), rows in by_file(reports).items():
        file = label(graph, format_name)
        kinds: dict[str, tuple[str, list[str]]] = {}
        total = set[str]()
        for row in rows:
            for finding in row.findings:
                total.add(finding.message)
                kinds.setdefault(finding.check, (finding.message, []))[1].append(row.runtime)
        for check in sorted(kinds, key=ORDER.index):
            message, runtimes = kinds[check]
            ways = list(dict.fromkeys(runtimes))
            where = f" ({', '.join(ways)})" if check not in WHEREVER and len(ways) < len(rows) else ""
            text = f"[red]{escape(file)}[/], {check}{escape(where)}: {escape(message)}"
            console.print(text, soft_wrap=not console.is_terminal)
        notes = list(dict.fromkeys(note for row in rows for note in row.notes))
        if notes:
            rest = f" (and {len(notes) - 1} more, in parity.json)" if len(notes) > 1 else ""
            console.print(
                f"[yellow]{file}[/], not compared: {escape(notes[0])}{rest}", soft_wrap=not console.is_terminal
            )
        more = len(total) - len(kinds)
        if more > 0:
            console.print(f"[red]… and {more} more[/] of {file}, all in parity.json")
