"""What the commands print for people: progress on stderr, tables of results."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from ..contracts.contract import CACHED
from ..parity.report import REFERENCE
from ..report.text import print_report, short

if TYPE_CHECKING:
    from ..decode.bench import BenchResult
    from ..parity.report import GraphReport
    from ..pipeline import ExportResult
    from ..verification import BundleCheck, BundlePlan


class Progress:
    """Shows the current stage on stderr. Shows nothing if stderr is not a terminal."""

    def __init__(self, *, shown: bool = True) -> None:
        self._status: Status | None = None
        if shown and sys.stderr and sys.stderr.isatty():  # rich also counts a log as a terminal if FORCE_COLOR is set
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


def print_result(result: ExportResult, *, to_stderr: bool = False, verbose: bool = False) -> None:
    """Print the summary, the table of files, findings, assumed values, where the bundle is and the next step."""
    console = Console(stderr=to_stderr, highlight=False)
    wraps = console.is_terminal  # between words, for people; elsewhere one message is one line
    if result.report:
        print_report(console, result.report, verbose=verbose)
    else:
        console.print(
            "[yellow bold]Not verified:[/] the files were not compared with PyTorch (--no-verify).",
            soft_wrap=not wraps,
        )
    if result.assumed:
        by_source: dict[str, list[str]] = {}
        for item in result.assumed:
            by_source.setdefault(item["source"], []).append(f"{item['name']}={item['value']}")
        parts = "; ".join(f"{source}: {', '.join(values)}" for source, values in by_source.items())
        console.print(
            f"[yellow]Assumed[/], because the checkpoint does not say it. {escape(parts)}", soft_wrap=not wraps
        )
    written = f"Written to {escape(short(result.bundle))} in {sum(result.seconds.values()):.0f} s"
    if result.report is None or result.report.passed:
        console.print(written, soft_wrap=True)
        return
    console.print(f"{written}; do not deploy it", soft_wrap=True)
    if any(row.runtime.startswith(REFERENCE) and not row.passed for row in result.report.graphs):
        console.print(
            "The reference computes something else than what mytx read from the checkpoint. Check the assumed values "
            "and --nhead.",
            soft_wrap=not wraps,
        )
    _offer_locate(console, result.bundle, result.report.graphs, result.factory)


def print_check(result: BundleCheck, *, to_stderr: bool = False, verbose: bool = False) -> None:
    """Print the same for a bundle that was verified again."""
    console = Console(stderr=to_stderr, highlight=False)
    rows = result.report.graphs
    print_report(console, result.report, rest="with --json, --html or --junit", verbose=verbose)
    console.print(
        f"All files in {escape(short(result.bundle))} match manifest {result.manifest_sha256[:12]} "
        f"({result.seconds:.1f} s)",
        soft_wrap=True,
    )
    _offer_locate(console, result.bundle, rows, result.factory)
    if result.stored and any(row.format == "onnx" and not (row.passed or row.doubted) for row in rows):
        command = f"mytx-export verify {shlex.quote(short(result.bundle))} --plan quick{_model(result.factory)}"
        console.print(f"Which weight or module: {escape(command)}", soft_wrap=True)


def _offer_locate(console: Console, bundle: Path, reports: Sequence[GraphReport], factory: str) -> None:
    """Print the command ``locate``, if an ONNX file differs from the model by itself or by onnxruntime's optimiser."""
    from ..runtimes.onnxruntime import LEVELS, OnnxRuntime, RuntimeOptions

    off, *on = (OnnxRuntime.label(RuntimeOptions(level=level)) for level in LEVELS)
    rows = [row for row in reports if row.format == "onnx"]
    wrong = any("structure" in {finding.check for finding in row.findings} for row in rows if row.graph not in CACHED)
    unoptimized = {row.graph for row in rows if row.passed and row.runtime == off}
    optimized = (row for row in rows if row.runtime in on and not row.doubted)
    by_optimizer = any(not row.passed and row.graph in unoptimized for row in optimized)
    if wrong or by_optimizer:
        title = "Which module differs first" if wrong else "By which rewrite of onnxruntime's optimiser"
        command = f"mytx-export locate {shlex.quote(short(bundle))}{_model(factory)}"
        console.print(f"{title}: {escape(command)}", soft_wrap=True)


def _model(factory: str) -> str:
    """The option that a bundle of a user's own model needs; empty for one of mytx's models."""
    return f" --model {shlex.quote(factory)}" if factory else ""


def print_bench(result: BenchResult, *, to_stderr: bool = False) -> None:
    """Print one row for each way to decode, then the settings and notes."""
    console = Console(stderr=to_stderr, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("decoded by")
    for title in ("beams", "tokens/s", "ms a step", "of memory limit", "same ids"):
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
    """Print the cases of each graph."""
    console = Console(stderr=to_stderr, highlight=False)
    for name, cases in plan.graphs.items():
        console.print(f"[bold]{escape(name)}[/]  {len(cases)} cases")
        for case in cases:
            console.print(f"  {case['name']}  {case['group']:<11}  {escape(case['words'])}", soft_wrap=True)


def print_inspection(found: dict[str, Any]) -> None:
    """Print the description of a path: sections with a title, then the command to run next."""
    console = Console(highlight=False)
    console.print(f"[bold]{escape(found['title'])}[/]", soft_wrap=True)
    for title, lines in found["sections"].items():
        if lines:
            console.print(f"\n[bold]{escape(title)}[/]")
        for line in lines:
            console.print(f"  {escape(line)}", soft_wrap=True)
    if found["next"]:
        console.print(f"\n[bold]Next[/]\n  {escape(found['next'])}", soft_wrap=True)
