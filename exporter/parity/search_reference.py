"""The reference of a graph that searches: the search in PyTorch, in float64, and where its results tie.

Ids are right or wrong, so there is no error to allow for them. But two hypotheses whose scores differ by less than
float32 can tell are both right. The margin that the search reports says how near a sentence came to that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..cases.case import Case
from ..graphs.graph import Graph
from ..graphs.modules import Search
from ..graphs.precision import in_float64
from .compare import FACTOR, ULP, Expected
from .reference import JITTERED_RUNS, MORE_RUNS, jittered, near_limit, threads_for
from .spread import Spread, spread_of, tally

Floats = NDArray[np.float64]
Result = tuple[NDArray[np.int64], NDArray[np.int64], Floats, Floats]  # tokens, lengths, scores, margins


def search_references(
    model: nn.Module, graph: Graph, plan: Sequence[Case], moved: Callable[[Case], bool] = lambda case: True
) -> list[dict[str, Expected]]:
    """For each case the tokens, lengths and scores of ``graph`` in float64, the noise of the scores, and what ties.

    Noise is measured as for any other graph. Sentences tie whose margin is below twice the error that is allowed for a
    score, or for which one of PyTorch's own float32 runs gave another result.

    Args:
        model: in float32 and evaluation mode. It goes to float64 and back in place, which is exact.
        graph: of ``model``; its module is a :class:`~mytx.exporter.graphs.modules.Search`.
        plan: the cases.
        moved: as for :func:`~mytx.exporter.parity.reference.compute_references`. With fewer runs fewer sentences tie.
    """
    with threads_for(model):
        with in_float64(model), graph.module.fused_once():
            exact = [_search(graph, case) for case in plan]
        with graph.module.fused_once():
            plain = [_search(graph, case) for case in plan]
        chosen = [index for index, case in enumerate(plan) if moved(case) or _near_limit(exact[index], plain[index])]
        runs = [[result] for result in plain]
        nudged = _nudged(model, graph, [plan[index] for index in chosen], range(JITTERED_RUNS))
        for index, more in zip(chosen, nudged, strict=True):
            runs[index] += more
    pad = graph.contract.ids["pad"]
    return [_expected(case, result, found, pad) for case, result, found in zip(plan, exact, runs, strict=True)]


def _near_limit(exact: Result, plain: Result) -> bool:
    """See :func:`~mytx.exporter.parity.reference.near_limit`."""
    return near_limit(float(np.abs(exact[2]).max(initial=0.0)), float(np.abs(plain[2] - exact[2]).max(initial=0.0)))


def measure_search(
    model: nn.Module, graph: Graph, plan: Sequence[Case], references: list[dict[str, Expected]], index: int
) -> dict[str, Expected]:
    """Measure the noise of one case by more runs; as :func:`~mytx.exporter.parity.reference.measure_more`."""
    before = references[index]
    with threads_for(model):
        (runs,) = _nudged(model, graph, [plan[index]], range(JITTERED_RUNS, JITTERED_RUNS + MORE_RUNS))
    exact = (before["tokens"].values, before["lengths"].values, before["scores"].values)
    errors = [
        np.abs(run[2][sentence] - exact[2][sentence]).max()
        for run in runs
        for sentence in range(len(exact[0]))
        if sentence not in before["scores"].ties and _same(exact, run, sentence)
    ]
    scores = before["scores"]
    references[index] = {**before, "scores": replace(scores, noise=max([scores.noise, *map(float, errors)]), spread=())}
    return references[index]


def endless(plan: Sequence[Case], references: Sequence[Mapping[str, Expected]]) -> bool:
    """Whether no sentence ends before it must: then nothing tells whether the search stops at the end id."""
    return not any(
        (outputs["lengths"].values < max(1, int(case.inputs["max_length"]))).any()
        for case, outputs in zip(plan, references, strict=True)
        if case.group != "range"
    )


def _nudged(model: nn.Module, graph: Graph, plan: Sequence[Case], seeds: Iterable[int]) -> list[list[Result]]:
    """For each case what the search gives with weights nudged, once for each seed."""
    found: list[list[Result]] = [[] for _ in plan]
    for seed in seeds if plan else ():
        with jittered(model, graph.weights(), torch.Generator().manual_seed(seed)), graph.module.fused_once():
            for results, case in zip(found, plan, strict=True):
                results.append(_search(graph, case))
    return found


def _search(graph: Graph, case: Case) -> Result:
    assert isinstance(graph.module, Search)
    inputs = {spec.name: case.inputs.get(spec.name, np.array(spec.default)) for spec in graph.contract.inputs}
    given = {name: torch.from_numpy(array) for name, array in inputs.items()}
    with torch.inference_mode(), graph.within():
        tokens, lengths, scores, margins = graph.module.search(**given)
    return tokens.numpy(), lengths.numpy(), scores.double().numpy(), margins.numpy()


def _expected(case: Case, exact: Result, runs: Sequence[Result], pad: int) -> dict[str, Expected]:
    tokens, lengths, scores, margins = exact
    penalty = max(0.0, float(case.inputs.get("length_penalty", 1.0)))
    factor = (lengths + 1.0) ** penalty  # a score times this is a sum of log-probabilities, which decides
    same = np.array([[_same(exact, run, sentence) for sentence in range(len(tokens))] for run in runs])
    errors = np.array([np.abs(run[2] - scores).max(axis=1) for run in runs])
    raw = np.array([np.abs((run[2] - scores) * factor).max(axis=1) for run in runs])
    noise = float(errors[same].max(initial=0.0))
    allowed = FACTOR * (float(raw[same].max(initial=0.0)) + ULP * float(np.abs(scores * factor).max()))
    ties = tuple(int(i) for i in np.flatnonzero((margins <= 2 * allowed) | ~same.all(axis=0)))
    return {
        "tokens": Expected(tokens.astype(np.float64), 0.0, exact=True, ties=ties, pad=pad),
        "lengths": Expected(lengths.astype(np.float64), 0.0, exact=True, ties=ties),
        "scores": replace(Expected(scores, noise, ties=ties), spread=_own_spread(scores, noise, runs[0], same[0])),
    }


def _own_spread(scores: Floats, noise: float, plain: Result, same: NDArray[np.bool_]) -> Spread:
    """How the errors of PyTorch's own plain run are spread, in sentences for which it gave the same ids."""
    return spread_of(tally(np.abs(plain[2] - scores)[same]), Expected(scores, noise).unit)


def _same(exact: tuple[Any, ...], run: Result, sentence: int) -> bool:
    """Whether a run gave the same ids for a sentence, however long the others' are."""
    lengths = exact[1][sentence]
    longest = int(lengths.max())
    ours, theirs = exact[0][sentence, :, :longest], run[0][sentence, :, :longest]
    return bool(np.array_equal(lengths, run[1][sentence]) and np.array_equal(ours, theirs))
