"""The contracts of every kind of model, and what tests look for in plans of cases."""

from __future__ import annotations

import numpy as np

from exported_models import KINDS, build, plain
from mytx.exporter.cases.case import Case
from mytx.exporter.contracts.contract import Axis, Contract
from mytx.exporter.graphs.model_graphs import graphs_of

BATCH, SOURCE, TARGET = Axis("batch", traced=2), Axis("source", traced=7), Axis("target", traced=5)
GRAPHS = {
    f"{kind}: {name}": graph
    for kind, (_, masks) in KINDS.items()
    for name, graph in plain(graphs_of(build(kind), masks)).items()
}
CONTRACTS = {name: graph.contract for name, graph in GRAPHS.items()}
FLEXIBLE = {name: graph.flexible for name, graph in GRAPHS.items()}

# Identities, by words of their cases.
PADDING, FUTURE, ALONE = "behind the padding", "after position", " alone"
ALL = {PADDING, FUTURE, ALONE}
WITH_DECODER = {"encoder": {PADDING, ALONE}, "decoder": ALL, "full": ALL}
# What each graph of each kind of model must be tried for.
PROMISED: dict[str, dict[str, set[str]]] = {
    "translation": WITH_DECODER,
    "couplet": WITH_DECODER,
    "average pooling": {"encoder": {PADDING, ALONE}, "full": {PADDING, ALONE}},
    "last pooling, silu": {"encoder": {PADDING, ALONE}, "full": {PADDING, ALONE}},
    "upstream pooling": {"encoder": {PADDING, ALONE}, "full": {ALONE}},
    "bare": WITH_DECODER,
    "bare, every mask": WITH_DECODER,
    "norm first, gelu, no bias": WITH_DECODER,
}


def contracts_of(kind: str) -> list[Contract]:
    """Those of the graphs of one kind of model that do not decode."""
    return [contract for name, contract in CONTRACTS.items() if name.startswith(f"{kind}: ")]


def sizes(contract: Contract, case: Case) -> dict[str, int]:
    """The length of each axis, read from the shapes of a case."""
    found = {}
    for spec in contract.inputs:
        for axis, size in zip(spec.axes, case.inputs[spec.name].shape, strict=True):
            if isinstance(axis, Axis):
                assert size % axis.times == 0
                assert found.setdefault(axis.name, size // axis.times) == size // axis.times
    return found


def masks(contract: Contract, plan: list[Case], role: str, dtype: str) -> list[np.ndarray]:
    names = [spec.name for spec in contract.inputs if (spec.role, spec.dtype) == (role, dtype)]
    return [case.inputs[name] for case in plan for name in names]


def same(a: Case, b: Case) -> bool:
    return all(np.array_equal(a.inputs[name], b.inputs[name], equal_nan=True) for name in a.inputs)


def kind_of(row: np.ndarray) -> str:
    """What a row of a padding mask is: ``right`` for padding at the end, and so on."""
    real = np.flatnonzero(~row)
    if not row.any():
        return "none"
    if len(real) == 0:
        return "whole"
    if len(real) != real[-1] - real[0] + 1:
        return "holes"
    return {(True, False): "left", (False, True): "right"}.get((bool(row[0]), bool(row[-1])), "both")


def derived(plan: list[Case], which: str = "") -> list[Case]:
    return [case for case in plan if case.group == "identities" and which in case.words]


def tried(plan: list[Case]) -> set[str]:
    return {which for which in ALL if derived(plan, which)}
