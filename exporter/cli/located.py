"""What people see of ``locate``: places, rewrites, and the next step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from ..contracts.contract import CACHED
from ..parity.compare import FACTOR
from ..report.text import short
from ..runtimes.onnxruntime import LEVELS

if TYPE_CHECKING:
    from ..locate.bundle import BundleLocated
    from ..locate.optimizer import OptimizerFault
    from ..locate.places import Located

SHOWN_PLACES = 3
SHOWN_NODES = 6


def print_located(result: BundleLocated, *, to_stderr: bool = False) -> None:
    """The first place of each graph, what follows from it, and where its reproduction is."""
    console = Console(stderr=to_stderr, highlight=False)
    wraps = console.is_terminal
    for located in result.graphs:
        if not located.introduced:
            for line in _without_place(result, located):
                console.print(line, soft_wrap=not wraps)
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
            folder = escape(short(result.reproductions[located.graph]))
            console.print(f"  reproduction: python {folder}/reproduce.py", soft_wrap=True)


def _without_place(result: BundleLocated, located: Located) -> list[str]:
    """Of a graph in which no place was found, or looked for: what onnxruntime makes of it."""
    graph, fault, tried = located.graph, result.optimizers.get(located.graph), result.tried.get(located.graph, 0)
    if graph in CACHED:
        about = "the model's modules are fused in it, so there is no place to name"
    elif not located.compared:
        about = "it has several outputs, so no module of it was looked at"
    else:
        about = f"computes what the model computes, at all {located.compared} places that were compared, in float64"
    if fault is not None:
        return [f"[red bold]{graph}[/]: {about}", *_fault(fault, graph)]
    if not tried:
        return [
            f"[green]{graph}[/]: {about}. It was not run in onnxruntime: the bundle has no reference cases, as "
            "after --no-verify"
        ]
    return [
        f"[green]{graph}[/]: {about}; in {tried} stored cases onnxruntime gives what the model gives, at each "
        "level of optimisation. What differs in a runtime is that runtime's doing"
    ]


def _fault(fault: OptimizerFault, graph: str) -> list[str]:
    first = fault.failures[0]
    where = ", ".join(filter(None, (f"case {first.case}" if first.case else "", first.output)))
    what = escape(f"{where}: {first.reason}" if where else first.reason)
    count = f"{fault.failed_cases} of {fault.cases} stored cases fail"
    if fault.level == "off":
        doing = "not the optimiser's doing" if graph in CACHED else "a kernel's doing, not the optimiser's"
        return [f"  {count} in onnxruntime with its optimiser off, so it is {doing}; {what}"]
    levels = list(LEVELS)
    below = levels[levels.index(fault.level) - 1]
    if not fault.disabled_optimizers:
        return [
            f"  {count} in onnxruntime from level {fault.level} of optimisation on, and none at level {below}; by no "
            f"rewrites that can be left out; {what}",
            "  until it is mended: options = onnxruntime.SessionOptions(); options.graph_optimization_level = "
            f"onnxruntime.GraphOptimizationLevel.{LEVELS[below].name}",
        ]
    names = " and ".join(fault.disabled_optimizers)
    lines = [
        f"  onnxruntime's optimiser makes it wrong, by [bold]{names}[/]: {count} from level {fault.level} on, and none "
        f"without; {what}"
    ]
    if math.isfinite(fault.worst_ratio):
        ratios = f"{fault.worst_ratio:.3g} with it, {fault.ratio_without:.2f} without, {FACTOR:g} allowed"
        lines.append(f"  worst ratio: {ratios}")
    if fault.nodes:
        nodes = [f"{number:+d} {name}" for name, number in fault.nodes.items()]
        more = f", and {len(nodes) - SHOWN_NODES} more types" if len(nodes) > SHOWN_NODES else ""
        lines.append(f"  nodes with it: {', '.join(nodes[:SHOWN_NODES])}{more}")
    if fault.instead:
        lines.append(f"  to leave out {' or '.join(fault.instead)} does as well")
    disabled = ", ".join(f'"{name}"' for name in fault.disabled_optimizers)
    lines.append(escape(f"  until it is mended: onnxruntime.InferenceSession(path, disabled_optimizers=[{disabled}])"))
    return lines
