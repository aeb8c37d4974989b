"""Finding the module at which an exported ONNX graph first differs from the model.

The file runs in float64, node by node. Wherever a value of the file is an input or output of a module, it is compared
with the model's tensor and then replaced by it ("teacher forcing"). So every block gets the inputs that the model gives
it, and an error in its output is introduced by the block. A free run, without replacement, shows the errors that are
passed on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..cases.case import Array, Case
from ..cases.identities import whole_plan
from ..cases.plan import few_cases
from ..contracts.contract import CACHED
from ..errors import BundleError, OptionError
from ..formats.table import FORMATS
from ..graphs.graph import Graph
from ..parity.report import Finding, GraphReport, ParityReport
from ..runtimes.lifting import lift
from ..runtimes.onnx_reference import NodeError, OnnxReference
from .capture import OUTPUT, Slot, capture, difference
from .matching import Check, Forced, Seen, match
from .scopes import FileScopes, shared_parent


@dataclass(frozen=True)
class Block:
    """The nodes from the last values that equal the model's to the first value that does not.

    Attributes:
        nodes: numbers of the nodes in the graph; empty if a right value is passed to the wrong place.
        inputs: the model's values for the inputs of the block, in float64, by their names in the file.
        expected: the model's value for the output, in float64.
        allowance: error of float32 at this place.
    """

    nodes: tuple[int, ...]
    inputs: dict[str, Array]
    expected: Array
    allowance: float


@dataclass(frozen=True)
class Place:
    """A value that differs from the model's.

    Attributes:
        module: state-dict name of the module that introduces the error; "" is the model's code outside all modules.
        value: name of the value in the file.
        node: name and type of the node that computes it.
        scopes: modules of the nodes that computed it since the last values that equal the model's.
        error: largest absolute error if the block gets the model's inputs: the error that it introduces.
        carried: error in the free run, with errors that were passed on; NaN if that run did not get there.
        allowed: largest error that is allowed.
        case: name and words of the case in which the error is largest, relative to the allowed error.
        block: the nodes and values of that case; None if a node failed.
    """

    module: str
    value: str
    node: str
    scopes: tuple[str, ...]
    error: float
    carried: float
    allowed: float
    case: str
    block: Block | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Located:
    """The result of :func:`locate`.

    Attributes:
        graph: name of the graph.
        introduced: places that introduce an error, in the order of the file; empty if the file equals the model.
        passed_on: modules with a wrong output in the free run that introduce no error.
        compared: number of compared values.
        unmatched: modules without a matching value in the file.
    """

    graph: str
    introduced: tuple[Place, ...]
    passed_on: tuple[str, ...]
    compared: int
    unmatched: tuple[str, ...]


def locate(path: Path, graph: Graph, cases: Sequence[Case]) -> Located:
    """Find where the ONNX file at ``path`` first differs from the model of ``graph``.

    Args:
        path: an ONNX file.
        graph: graph of a model in float32 and evaluation mode. The model is not changed.
        cases: a few small cases of different lengths, with masks that hide something.

    Raises:
        BundleError: if the file cannot be read or has other inputs than the graph.
        OptionError: if the graph has several outputs.
    """
    if len(graph.contract.outputs) != 1:
        raise OptionError(
            f"{graph.name} has {len(graph.contract.outputs)} outputs", "locate can only search graphs with one output"
        )
    try:
        file = OnnxReference.open(path, lifted=True)
    except Exception as error:
        raise BundleError(f"{path} cannot be read: {' '.join(str(error).split())}", "export it again") from error
    contract = graph.contract
    taken, meant = list(file.describe().inputs), [spec.name for spec in contract.inputs]
    if sorted(taken) != sorted(meant):
        raise BundleError(
            f"{path.name} takes {', '.join(taken)}, the {contract.graph} graph {', '.join(meant)}",
            "give the checkpoint and the options that it was exported with",
        )
    model = graph.module.model
    wanted = capture(model, graph, cases)
    scopes = FileScopes(file.graph, {name for name, _ in model.named_modules()})
    many = [case.inputs for case in cases]

    outputs = [spec.name for spec in contract.outputs]

    free = Seen(scopes)
    free_results = file.run_all(many, free)
    seen = free
    while True:
        forced = Forced(scopes, match(scopes, file.varying, seen, wanted, outputs), wanted)
        results = file.run_all(many, forced)
        if set(forced.values) <= set(seen.values):
            break
        seen = forced  # this run got further than the run before, so more values can be matched
    _compare_outputs(forced, results, outputs)
    missing = [name for name in outputs if name not in file.describe().outputs]
    return _report(graph, cases, forced, free, free_results, results, missing)


def explained(report: ParityReport, graphs: Mapping[str, Graph], folder: Path) -> ParityReport:
    """Add to ``report`` the place at which a file first differs from the model, if its check of structure failed.

    Args:
        report: what verification found.
        graphs: graphs of the model, by name.
        folder: folder of the files.
    """
    return ParityReport(tuple(_with_place(row, graphs, folder) for row in report.graphs))


def _with_place(row: GraphReport, graphs: Mapping[str, Graph], folder: Path) -> GraphReport:
    fused = row.graph in CACHED
    if fused or row.format != "onnx" or "structure" not in {finding.check for finding in row.findings}:
        return row
    graph = graphs[row.graph]
    try:
        cases = few_cases(whole_plan(graph.contract))
        places = locate(folder / FORMATS["onnx"].file(row.graph), graph, cases).introduced
    except Exception:  # only a help: an error here must not hide the findings
        return row
    found = []
    for place in places[:1]:
        module = place.module or "code outside of all modules"
        found.append(Finding("place", f"{module} is the first to differ from the model: {place.node}, in {place.case}"))
    return replace(row, findings=(*row.findings, *found))


# --- what it means ----------------------------------------------------------------------------------------------------


def _compare_outputs(forced: Forced, results: Sequence[Any], names: Sequence[str]) -> None:
    """Compare outputs that no node computes from the inputs: the forced run has not seen them."""
    for name in names:
        for case, result in enumerate(results):
            if isinstance(result, dict) and not any(
                check.value == name for check in forced.checks if check.case == case
            ):
                forced.check(("", 0, OUTPUT), name, None, case, result[name])


def _report(
    graph: Graph,
    cases: Sequence[Case],
    forced: Forced,
    free: Seen,
    free_results: Sequence[Any],
    results: Sequence[Any],
    missing: Sequence[str],
) -> Located:
    def carried(check: Check) -> float:
        found = free.values.get(check.value, {}).get(check.case)
        if found is None:
            result = free_results[check.case]
            found = result.get(check.value) if isinstance(result, dict) else None
        return math.nan if found is None else difference(found, forced.wanted[check.case][check.slot].values)

    by_value: dict[str, list[Check]] = {}
    for check in forced.checks:
        by_value.setdefault(check.value, []).append(check)
    places: list[tuple[int, Place]] = []
    off: dict[str, None] = {}
    for value, checks in by_value.items():
        bad = [check for check in checks if not check.error <= check.allowed]
        if bad:
            worst = max(
                bad, key=lambda check: (check.error / check.allowed if check.allowed else math.inf, check.error)
            )
            words = f"case {cases[worst.case].name} ({cases[worst.case].words})"
            places.append(_place(forced, worst, value, carried(worst), words, cases[worst.case]))
        off.update(
            {check.slot[0]: None for check in checks if check.slot[2] == OUTPUT and carried(check) > check.allowed}
        )
    for case, result in zip(cases, results, strict=True):
        if isinstance(result, Exception):
            places.append(_failure(forced.scopes, result, f"case {case.name} ({case.words})"))
    for name in missing:
        places.append((len(forced.scopes.nodes), Place("", name, "", (), math.inf, math.nan, 0.0, "all cases")))
    introduced: dict[tuple[str, str], Place] = {}
    for _, place in sorted(places, key=lambda item: item[0]):
        introduced.setdefault((place.module, place.value), place)
    guilty = {place.module for place in introduced.values()}
    slots = dict.fromkeys(slot[0] for tensors in forced.wanted for slot in tensors if slot[2] == OUTPUT)
    found = {check.slot[0] for check in forced.checks if check.slot[2] == OUTPUT}
    return Located(
        graph=graph.name,
        introduced=tuple(introduced.values()),
        passed_on=tuple(module for module in off if module and module not in guilty),
        compared=len({(check.slot, check.value) for check in forced.checks}),
        unmatched=tuple(module for module in slots if module not in found),
    )


def _place(forced: Forced, check: Check, value: str, carried: float, words: str, case: Case) -> tuple[int, Place]:
    scopes = forced.scopes
    nodes, inputs = _behind(forced, check)
    tensor = forced.wanted[check.case][check.slot]
    fed = {
        name: case.inputs[name] if slot is None else forced.wanted[check.case][slot].values
        for name, slot in inputs.items()
        if slot is not None or name in case.inputs
    }
    # A module introduces the error of its own output. Otherwise the code that computed or passed the value does.
    module = check.slot[0] or scopes.module_of(nodes, "")
    if check.reader is not None:
        readers = {slot[0] for (_, name), slot in forced.matches.taken.items() if name == value} if nodes else {module}
        module = scopes.module_of(nodes, shared_parent(readers))
    told = [node for node in nodes if forced.is_content(node)]
    number = scopes.producer.get(value)
    nearest = number if number is not None and number in nodes else check.reader
    place = Place(
        module=module,
        value=value,
        node="" if nearest is None else scopes.describe(nearest),
        scopes=tuple(dict.fromkeys(scope for node in told or nodes if (scope := scopes.scopes[node][1]) is not None)),
        error=check.error,
        carried=carried,
        allowed=check.allowed,
        case=words,
        block=Block(nodes, {name: lift(array) for name, array in fed.items()}, tensor.values, tensor.allowance),
    )
    return (nearest if nearest is not None else len(scopes.nodes)), place


def _behind(forced: Forced, check: Check) -> tuple[tuple[int, ...], dict[str, Slot | None]]:
    """The nodes that computed a value from values that equal the model's, and those values with their slots."""
    scopes, matches = forced.scopes, forced.matches
    nodes: set[int] = set()
    inputs: dict[str, Slot | None] = {}
    waiting: list[tuple[str, Slot | None]] = [(check.value, None)]
    while waiting:
        name, slot = waiting.pop()
        number = scopes.producer.get(name)
        # A value that was compared before was replaced by the model's. So was the checked value itself, if the error is
        # only that this node reads it.
        known = slot or next(iter(matches.given.get(name, ())), None)
        if name == check.value and check.reader is None:
            known = None
        if known is not None or number is None:
            inputs[name] = known
        elif number not in nodes:
            nodes.add(number)
            waiting += [(read, matches.taken.get((number, read))) for read in scopes.nodes[number].input if read]
    return tuple(sorted(nodes)), inputs


def _failure(scopes: FileScopes, error: Exception, words: str) -> tuple[int, Place]:
    if not isinstance(error, NodeError):
        return len(scopes.nodes), Place("", "", str(error), (), math.inf, math.nan, 0.0, words)
    number = next(number for number, node in enumerate(scopes.nodes) if node == error.node)
    module = scopes.scopes[number][1] or ""
    value = scopes.nodes[number].output[0]
    return number, Place(module, value, str(error), (module,), math.inf, math.nan, 0.0, words)
