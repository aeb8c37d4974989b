"""The pieces of the search that rank candidates. TorchScript compiles them into it."""

import math
from typing import List, Tuple

import torch
from torch import Tensor


def best_of(scores: Tensor, count: int) -> Tuple[Tensor, Tensor]:
    """The ``count`` largest of each row of ``scores [N, K]`` and their places, best first; of equal ones the first.

    ``topk`` alone promises no order of equal ones, and sorting all of a large vocabulary takes longer than the model.
    """
    worst = scores.topk(count, dim=1).values[:, -1:]
    possible = max(count, int((scores >= worst).sum(1).max()))
    places = scores.topk(possible, dim=1).indices.sort(dim=1).values
    values, order = torch.sort(scores.gather(1, places), stable=True, dim=1, descending=True)
    return values[:, :count], places.gather(1, order[:, :count])


def rows_of(history: Tensor, index: Tensor) -> Tensor:
    """``history [N, K, T]``, ``index [N, M]`` in 0..K-1 -> ``[N, M, T]``."""
    return history.gather(1, index.unsqueeze(2).expand(-1, -1, history.size(2)))


def successors(ends: List[bool], num_beams: int) -> List[int]:
    """The ``num_beams`` candidates that go on, by rank: each of the first that is not the end token stays in its place,
    and the best of the others that is not takes the place of each that is.

    Args:
        ends: which candidates are the end token, best first; at least ``num_beams`` of them are not.
        num_beams: B.
    """
    going: List[int] = []
    spare = num_beams
    for rank in range(num_beams):
        if not ends[rank]:
            going.append(rank)
            continue
        while ends[spare]:
            spare += 1
        going.append(spare)
        spare += 1
    return going


def step_margin(
    scores: List[float], ends: List[bool], num_beams: int, last: bool, done: bool, top_matters: bool
) -> float:
    """The smallest difference of scores that decided something in one step of one sentence; inf if nothing did.

    Args:
        scores: of the candidates, best first; one more than twice the beams, if there are as many.
        ends: which of them are the end token.
        num_beams: how many of them may finish.
        last: whether the first ``num_beams`` are kept as they are.
        done: whether no candidate goes on.
        top_matters: whether it matters which candidate is first.
    """
    margin = math.inf
    inner = scores[num_beams - 1]
    outer = scores[num_beams] if num_beams < len(scores) else -math.inf
    if last:
        margin = min(margin, inner - outer)
    going: List[float] = []
    for rank, score in enumerate(scores):
        if not ends[rank]:
            going.append(score)
        elif rank < num_beams:  # it finished: it would not have, had it been as low as the first outside
            margin = min(margin, score - outer)
        else:
            margin = min(margin, inner - score)
    if not done and num_beams < len(going):
        margin = min(margin, going[num_beams - 1] - going[num_beams])
    if top_matters and len(scores) > 1 and (ends[0] or ends[1]):
        margin = min(margin, scores[0] - scores[1])
    return margin
