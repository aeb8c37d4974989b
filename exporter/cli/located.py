"""What ``locate`` prints: modules, rewrites of the optimiser, and the next step."""

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
    """Print the first places of each graph, the modules that pass an error on, and where the reproduction is."""
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
                f"  {len(located.unmatched)} modules were not found by the names of the nodes; only the values around "
                "them were compared",
                soft_wrap=not wraps,
            )
        if located.introduced and located.passed_on:
            console.print(f"  passed on by {len(located.passed_on)} modules that introduce no error", soft_wrap=True)
        if located.graph in result.reproductions:
            folder = escape(short(result.reproductions[located.graph]))
            console.print(f"  reproduction: python {folder}/reproduce.py", soft_wrap=True)


def _without_place(result: BundleLocated, located: Located) -> list[str]:
    """The lines for a graph in which no place was found or searched: how it does in onnxruntime."""
    graph, fault, tried = located.graph, result.optimizers.get(located.graph), result.tried.get(located.graph, 0)
    if graph in CACHED:
        about = "its modules are fused, so there is no place to name"
    elif not located.compared:
        about = "it has several outputs, so its modules were not compared"
    else:
        about = f"computes what the model computes in float64, at all {located.compared} places that were compared"
    if fault is not None:
        return [f"[red bold]{graph}[/]: {about}", *_fault(fault, graph)]
    if not tried:
        return [
            f"[green]{graph}[/]: {about}. It was not run in onnxruntime: the bundle has no reference cases, as "
            "after --no-verify"
        ]
    return [
        f"[green]{graph}[/]: {about}; in {tried} stored cases onnxruntime gives what the model gives, at each "
        "level of optimisation. If a runtime gives other results, the cause is in that runtime"
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
            f"  {count} in onnxruntime from level {fault.level} of optimisation on, and none at level {below}; no "
            f"rewrite that can be disabled is the cause; {what}",
            "  workaround: options = onnxruntime.SessionOptions(); options.graph_optimization_level = "
            f"onnxruntime.GraphOptimizationLevel.{LEVELS[below].name}",
        ]
    names = " and ".join(fault.disabled_optimizers)
    lines = [
        f"  onnxruntime's optimiser makes it wrong, by [bold]{names}[/]: {count} from level {fault.level} on, and none "
        f"without; {what}"
    ]
    if math.isfinite(fault.worst_ratio):
        ratios = f"{fault.worst_ratio:.3g} with it, {fault.ratio_without:.2f} without, {FACTOR:g} allowed"
        lines.append(f"  largest error, in units of PyTorch's own float32 error: {ratios}")
    if fault.nodes:
        nodes = [f"{number:+d} {name}" for name, number in fault.nodes.items()]
        more = f", and {len(nodes) - SHOWN_NODES} more types" if len(nodes) > SHOWN_NODES else ""
        lines.append(f"  it changes the nodes: {', '.join(nodes[:SHOWN_NODES])}{more}")
    if fault.instead:
        lines.append(f"  disabling {' or '.join(fault.instead)} instead also works")
    disabled = ", ".join(f'"{name}"' for name in fault.disabled_optimizers)
    lines.append(escape(f"  workaround: onnxruntime.InferenceSession(path, disabled_optimizers=[{disabled}])"))
    return lines
