"""Inputs and outputs of every module of the eager model, in float64, with the error of float32 at each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..cases.case import Array, Case
from ..graphs.graph import Graph
from ..graphs.precision import in_float64
from ..graphs.running import run_graph
from ..parity.compare import ULP
from ..parity.reference import jittered, nudge

JITTERED_RUNS = 2
OUTPUT = -1  # number of the output of a call; its inputs have the numbers 0, 1, …

# The state-dict name of a module, the number of a call of it, and the number of a tensor of that call. The whole graph
# has the name "".
Slot = tuple[str, int, int]


@dataclass(frozen=True)
class Wanted:
    """A tensor of the eager model in one case.

    Attributes:
        values: values in float64; bool and integers keep their dtype.
        allowance: error of float32 at this place, as in ``compare``: noise + ULP * scale. 0 for exact dtypes.
    """

    values: Array
    allowance: float


def capture(model: nn.Module, graph: Graph, cases: Sequence[Case]) -> list[dict[Slot, Wanted]]:
    """Record the inputs and outputs of all modules, for each case, in the order of execution.

    A tensor that several modules return unchanged (dropout in evaluation mode, a stack that ends with a norm) is
    recorded once, for the innermost module.

    Args:
        model: the model in float32 and evaluation mode. It is converted to float64 and back in place, which is exact.
        graph: a graph of ``model``.
        cases: a few small cases, because all tensors are kept in memory.
    """
    with in_float64(model):
        exact = [_run(model, graph, case, Tensor.double) for case in cases]
    slots = [_distinct(tensors) for tensors in exact]
    kept = [{slot: tensors[slot].numpy() for slot in own} for tensors, own in zip(exact, slots, strict=True)]
    noise = [dict.fromkeys(arrays, 0.0) for arrays in kept]

    def measure(prepare: Callable[[Tensor], Tensor]) -> None:
        for case, arrays, largest in zip(cases, kept, noise, strict=True):
            tensors = _run(model, graph, case, prepare)
            for slot, values in arrays.items():
                largest[slot] = max(largest[slot], difference(tensors[slot].numpy(), values))

    measure(lambda tensor: tensor)
    for seed in range(JITTERED_RUNS):
        generator = torch.Generator().manual_seed(seed)
        with jittered(model, graph.weights(), generator):
            measure(partial(nudge, generator=generator))
    return [
        {slot: Wanted(values, _allowance(values, largest[slot])) for slot, values in arrays.items()}
        for arrays, largest in zip(kept, noise, strict=True)
    ]


def difference(found: Array, values: Array) -> float:
    """The largest absolute difference; infinite if the shapes differ, or if only one value is infinite or NaN."""
    if found.shape != values.shape:
        return np.inf
    if values.dtype == bool:
        return float((found != values).any())
    with np.errstate(invalid="ignore"):
        error = np.abs(found.astype(np.float64) - values.astype(np.float64))
    error[(found == values) | (np.isnan(found) & np.isnan(values))] = 0
    error[np.isnan(error)] = np.inf
    return float(error.max(initial=0.0))


def _allowance(values: Array, noise: float) -> float:
    if values.dtype != np.float64:
        return 0.0
    return noise + ULP * float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


# --- hooks -----------------------------------------------------------------------------------------------------------


def _run(model: nn.Module, graph: Graph, case: Case, prepare: Callable[[Tensor], Tensor]) -> dict[Slot, Tensor]:
    """Every input and output of every module, and the graph's output. ``prepare`` is applied to the float inputs."""
    tensors: dict[Slot, Tensor] = {}
    with _hooks(model, tensors):
        (tensors["", 0, OUTPUT],) = run_graph(graph, case.inputs, prepare)
    return tensors


@contextmanager
def _hooks(model: nn.Module, tensors: dict[Slot, Tensor]) -> Iterator[None]:
    calls: dict[str, int] = {}

    def hook(name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        call = calls[name] = calls.get(name, -1) + 1
        given = dict.fromkeys(value for value in [*args, *kwargs.values()] if isinstance(value, Tensor))
        tensors.update({(name, call, number): tensor for number, tensor in enumerate(given)})
        first = output[0] if isinstance(output, tuple) and output else output
        if isinstance(first, Tensor):  # tensors in a dict or a list are recorded as inputs of the next module
            tensors[name, call, OUTPUT] = first

    handles = [
        module.register_forward_hook(partial(hook, name), with_kwargs=True)
        for name, module in model.named_modules()
        if name
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _distinct(tensors: Mapping[Slot, Tensor]) -> list[Slot]:
    """The slots without outputs that a module returns unchanged."""
    seen: set[Any] = set()
    found = []
    for slot, tensor in tensors.items():
        if slot[2] == OUTPUT and slot[0]:
            identity = (tensor.data_ptr(), tensor.shape, tensor.stride())
            inputs = (other for other in tensors if other[:2] == slot[:2] and other[2] != OUTPUT)
            handed_on = any(
                (tensors[other].data_ptr(), tensors[other].shape, tensors[other].stride()) == identity
                for other in inputs
            )
            if identity in seen or handed_on:
                continue
            seen.add(identity)
        found.append(slot)
    return found
