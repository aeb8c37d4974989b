"""The reference: the untouched eager model in float64, and how far its own float32 runs are from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .compare import Expected
from .graphs import Graph
from .plan import Case

Array = NDArray[np.float64]
JITTERED_RUNS = 4
MORE_RUNS = 28  # where those leave it open
SMALL_MODEL = 20_000_000  # parameters
CHUNK = 1 << 17  # values that stay in the cache: twice as fast as a whole matrix at once


def compute_references(model: nn.Module, graph: Graph, plan: Sequence[Case]) -> list[dict[str, Expected]]:
    """For each case the outputs of ``graph`` in float64 and the noise of float32.

    The noise is the largest error of one float32 run and of four more in which about half of all weights and inputs
    are moved to a neighbouring float32 (half an ULP on average). One run alone is sometimes lucky.

    Args:
        model: in float32 and evaluation mode. It goes to float64 and back in place, which is exact.
        graph: of ``model``.
        plan: the cases.
    """
    names = [spec.name for spec in graph.contract.outputs]
    with _threads_for(model):
        model.double()
        try:
            references = [_run(graph, case, Tensor.double) for case in plan]
        finally:
            model.float()
        plain = [_errors(graph, case, values, lambda x: x) for case, values in zip(plan, references, strict=True)]
        noise = np.maximum(plain, _jittered_errors(model, graph, plan, references, range(JITTERED_RUNS)))
    return [
        {name: Expected(values, float(error)) for name, values, error in zip(names, outputs, errors, strict=True)}
        for outputs, errors in zip(references, noise, strict=True)
    ]


def measure_more(
    model: nn.Module, graph: Graph, plan: Sequence[Case], references: list[dict[str, Expected]], index: int
) -> dict[str, Expected]:
    """Measure the noise of one case by :data:`MORE_RUNS` more runs: five may have been lucky.

    Args:
        model, graph, plan: as for :func:`compute_references`.
        references: what it gave; the case's is replaced.
        index: of the case.

    Returns:
        The case's new reference.
    """
    before = references[index]
    names = [spec.name for spec in graph.contract.outputs]
    seeds = range(JITTERED_RUNS, JITTERED_RUNS + MORE_RUNS)
    with _threads_for(model):
        (errors,) = _jittered_errors(model, graph, [plan[index]], [[before[name].values for name in names]], seeds)
    references[index] = {
        name: replace(before[name], noise=float(np.maximum(before[name].noise, error)))
        for name, error in zip(names, errors, strict=True)
    }
    return references[index]


def _jittered_errors(
    model: nn.Module, graph: Graph, plan: Sequence[Case], references: Sequence[Sequence[Array]], seeds: Iterable[int]
) -> Array:
    """For each case and output the largest error of float32 runs with weights and inputs nudged."""
    worst = np.zeros((len(plan), len(graph.contract.outputs)))
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        with jittered(model, graph.weights(), generator):
            prepare = partial(nudge, generator=generator)
            errors = [_errors(graph, case, values, prepare) for case, values in zip(plan, references, strict=True)]
        worst = np.maximum(worst, errors)
    return worst


def _errors(graph: Graph, case: Case, references: Sequence[Array], prepare: Callable[[Tensor], Tensor]) -> list[float]:
    return [
        float(np.abs(output - reference).max(initial=0.0))
        for output, reference in zip(_run(graph, case, prepare), references, strict=True)
    ]


@contextmanager
def _threads_for(model: nn.Module) -> Iterator[None]:
    """One thread for a small model: more gain nothing there, and where other processes keep the cores busy,
    waiting for the other threads made these runs 20 times slower.
    """
    before = torch.get_num_threads()
    if sum(parameter.numel() for parameter in model.parameters()) < SMALL_MODEL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(graph: Graph, case: Case, prepare: Callable[[Tensor], Tensor]) -> list[Array]:
    """The outputs in the contract's order, as float64; ``prepare`` sees the float inputs."""
    tensors = [torch.from_numpy(case.inputs[spec.name]) for spec in graph.contract.inputs]
    with torch.inference_mode():
        output = graph.module(*(prepare(tensor) if tensor.is_floating_point() else tensor for tensor in tensors))
    return [output.double().numpy()]


@contextmanager
def jittered(model: nn.Module, names: Collection[str], generator: torch.Generator) -> Iterator[None]:
    """Within the block the weights and buffers called ``names`` are nudged; afterwards all are as before."""
    originals = [
        (tensor, tensor.data)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        if name in names and tensor.is_floating_point()
    ]
    try:
        for tensor, data in originals:
            tensor.data = nudge(data, generator)
        yield
    finally:
        for tensor, data in originals:
            tensor.data = data


def nudge(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """A copy with about half of the finite, non-zero float32 values moved to a neighbour, up or down."""
    result = tensor.flatten().clone()
    for chunk in torch.split(result, CHUNK):
        random = torch.empty(chunk.numel() // 8 + 1, dtype=torch.int64).random_(generator=generator)
        bits = random.view(torch.int8)[: chunk.numel()]
        step = (bits & 1) - (bits >> 1 & 1)  # -1, 0, 0 or 1
        size = chunk.abs()
        step *= (size > 0) & (size < math.inf)
        # Neighbouring floats are neighbouring integers of the same bits, as IEEE 754 orders them.
        chunk.view(torch.int32).add_(step)
    return result.view(tensor.shape)
