"""The reference: the untouched eager model in float64, and how far its own float32 runs are from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..cases.case import Case, SameAs
from ..contracts.contract import TensorSpec
from ..graphs.graph import Graph
from ..graphs.precision import in_float64
from ..graphs.running import run_graph
from ..memory import release_memory
from .compare import NOISE_LIMIT, SMALLEST, Expected
from .spread import Sizes, spread_of, tally

Floats = NDArray[np.float64]
JITTERED_RUNS = 4
MORE_RUNS = 28  # where those leave it open
NEAR = 1 / 16  # of the limit: five runs are hardly ever that much further off than one
SMALL_MODEL = 20_000_000  # parameters
CHUNK = 1 << 17  # values that stay in the cache: twice as fast as a whole matrix at once


def compute_references(
    model: nn.Module, graph: Graph, plan: Sequence[Case], moved: Callable[[Case], bool] = lambda case: True
) -> list[dict[str, Expected]]:
    """For each case the outputs of ``graph`` in float64, the noise of float32, and how large one run's errors are.

    The noise is the largest error of one float32 run and of four more in which about half of all weights and inputs
    are moved to a neighbouring float32 (half an ULP on average). One run alone is sometimes lucky: then the noise is
    too small, and never too large. See :mod:`~mytx.exporter.parity.noise`.

    Args:
        model: in float32 and evaluation mode. It goes to float64 and back in place, which is exact.
        graph: of ``model``.
        plan: the cases. An identity gets the reference of the case that it must agree with.
        moved: the cases whose noise is measured by the four runs, too. It is so anyhow where one run alone comes near
            the limit above which a case is not judged.
    """
    specs = graph.contract.outputs
    whole, plan = plan, [case for case in plan if case.same_as is None]
    with threads_for(model):
        with in_float64(model), graph.module.fused_once():
            references = [_run(graph, case, Tensor.double) for case in plan]
        release_memory(cycles=False)
        sizes: list[list[Sizes]] = [[] for _ in plan]
        with graph.module.fused_once():
            plain = [
                _errors(graph, case, values, lambda x: x, found.append)
                for case, values, found in zip(plan, references, sizes, strict=True)
            ]
        noise = np.array(plain)
        chosen = [
            index for index, case in enumerate(plan) if moved(case) or _near_limit(references[index], plain[index])
        ]
        rows = [plan[index] for index in chosen], [references[index] for index in chosen]
        noise[chosen] = np.maximum(noise[chosen], _jittered_errors(model, graph, *rows, range(JITTERED_RUNS)))
    own = iter(zip(references, noise, sizes, strict=True))
    found: list[dict[str, Expected]] = []
    for case in whole:
        if case.same_as is not None:
            found.append(derived(case.same_as, found[case.same_as.case]))
            continue
        outputs, errors, kept = next(own)
        measured = zip(specs, outputs, errors, kept, strict=True)
        found.append({spec.name: _measured(spec, *row) for spec, *row in measured})
    return found


def near_limit(scale: float, noise: float) -> bool:
    """Whether more runs may find that float32 is too far off to judge by."""
    return not noise <= NEAR * max(NOISE_LIMIT * scale, SMALLEST)


def _near_limit(references: Sequence[Floats], errors: Sequence[float]) -> bool:
    scales = [float(np.abs(values).max(initial=0.0)) for values in references]
    return any(map(near_limit, scales, errors))


def _measured(spec: TensorSpec, values: Floats, error: float, sizes: Sizes) -> Expected:
    if not spec.dtype.startswith("float") and error == 0:  # where its own runs differ, PyTorch cannot tell either
        return Expected(values, 0.0, exact=True)
    expected = Expected(values, float(error))
    return replace(expected, spread=spread_of(sizes, expected.unit))


def derived(same: SameAs, other: Mapping[str, Expected]) -> dict[str, Expected]:
    """The reference of a case that must agree with another, at the places where it must."""
    return {
        name: Expected(
            values=expected.values.ravel()[same.theirs[name]],
            noise=expected.noise,
            positions=same.ours[name],
            shape=same.shapes[name],
            scale=float(np.abs(expected.values).max(initial=0.0)),
            exact=expected.exact,
        )
        for name, expected in other.items()
    }


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
    same = plan[index].same_as
    if same is not None:
        references[index] = derived(same, measure_more(model, graph, plan, references, same.case))
        return references[index]
    before = references[index]
    names = [spec.name for spec in graph.contract.outputs]
    seeds = range(JITTERED_RUNS, JITTERED_RUNS + MORE_RUNS)
    with threads_for(model):
        (errors,) = _jittered_errors(model, graph, [plan[index]], [[before[name].values for name in names]], seeds)
    references[index] = {
        # The spread was in units of the noise before; what is left of it is not worth another run.
        name: replace(before[name], noise=float(np.maximum(before[name].noise, error)), spread=())
        for name, error in zip(names, errors, strict=True)
    }
    return references[index]


def _jittered_errors(
    model: nn.Module, graph: Graph, plan: Sequence[Case], references: Sequence[Sequence[Floats]], seeds: Iterable[int]
) -> Floats:
    """For each case and output the largest error of float32 runs with weights and inputs nudged."""
    worst = np.zeros((len(plan), len(graph.contract.outputs)))
    if not plan:
        return worst
    for seed in seeds:
        with jittered(model, graph.weights(), torch.Generator().manual_seed(seed)), graph.module.fused_once():
            errors = []
            for case, values in zip(plan, references, strict=True):
                # Of its own, so that the noise of a case does not depend on which others are measured with it.
                prepare = partial(nudge, generator=torch.Generator().manual_seed(seed))
                errors.append(_errors(graph, case, values, prepare))
        worst = np.maximum(worst, errors)
    return worst


def _errors(
    graph: Graph,
    case: Case,
    references: Sequence[Floats],
    prepare: Callable[[Tensor], Tensor],
    keep: Callable[[Sizes], None] | None = None,
) -> list[float]:
    """The largest error of each output; ``keep`` is told how many of each size there are."""
    largest = []
    for output, reference in zip(_run(graph, case, prepare), references, strict=True):
        errors = np.abs(output - reference)
        largest.append(float(errors.max(initial=0.0)))
        if keep is not None:
            keep(tally(errors))
    return largest


@contextmanager
def threads_for(model: nn.Module) -> Iterator[None]:
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


def _run(graph: Graph, case: Case, prepare: Callable[[Tensor], Tensor]) -> list[Floats]:
    """The outputs in the contract's order, as float64; ``prepare`` sees the float inputs."""
    outputs = run_graph(graph, case.inputs, prepare)
    return [output.double().numpy() for output in outputs]


@contextmanager
def jittered(model: nn.Module, names: Collection[str], generator: torch.Generator) -> Iterator[None]:
    """Within the block the weights and buffers called ``names`` are nudged; afterwards all are as before."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    found = {id(tensor): tensor for name, tensor in tensors if name in names and tensor.is_floating_point()}
    originals = [(tensor, tensor.data) for tensor in found.values()]
    try:
        for tensor, data in originals:
            tensor.data = nudge(data, generator)
        yield
    finally:
        for tensor, data in originals:
            tensor.data = data


def nudge(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """A copy with about half of the finite float32 values moved to a neighbour, up or down; 0 to the least above it."""
    if tensor.dtype != torch.float32:  # an input in float64, which a model computes with as it is
        return tensor
    result = tensor.flatten().clone()
    for chunk in torch.split(result, CHUNK):
        offset = int(torch.randint(len(_bits()) - chunk.numel(), (1,), generator=generator))
        # IEEE 754 orders floats as it does their bits: another last bit is a neighbour, above or below.
        chunk.view(torch.int32).bitwise_xor_(_bits()[offset : offset + chunk.numel()])
    if not math.isfinite(float(result.sum())):  # infinity has become NaN, and NaN another
        result = torch.where(tensor.flatten().isfinite(), result, tensor.flatten())
    return result.view(tensor.shape)


@cache
def _bits() -> Tensor:
    """Random 0 and 1, made once: to draw them anew for each weight takes longer than to run the model."""
    return torch.randint(2, (1 << 20,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
