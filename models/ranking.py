"""The functions of the search that rank candidates. TorchScript compiles them together with the search."""

import math
from typing import List, Tuple

import torch
from torch import Tensor


def best_of(scores: Tensor, count: int) -> Tuple[Tensor, Tensor]:
    """The ``count`` largest scores of each row of ``scores [N, K]`` and their indices, best first.

    Of equal scores the one with the smaller index is first. ``topk`` alone does not promise that, and sorting all
    scores of a large vocabulary takes longer than the model itself.
    """
    worst = scores.topk(count, dim=1).values[:, -1:]
    possible = max(count, int((scores >= worst).sum(1).max()))
    places = scores.topk(possible, dim=1).indices.sort(dim=1).values
    values, order = torch.sort(scores.gather(1, places), stable=True, dim=1, descending=True)
    return values[:, :count], places.gather(1, order[:, :count])


def rows_of(history: Tensor, index: Tensor) -> Tensor:
    """Rows of ``history [N, K, T]`` at ``index [N, M]``, 0 to K - 1: ``[N, M, T]``."""
    return history.gather(1, index.unsqueeze(2).expand(-1, -1, history.size(2)))


def successors(ends: List[bool], num_beams: int) -> List[int]:
    """The ranks of the ``num_beams`` candidates that continue.

    Each of the first ``num_beams`` candidates keeps its place if it is not the end token. If it is, the best unused
    candidate below them that is not the end token takes its place.

    Args:
        ends: for each candidate, best first, whether it is the end token; at least ``num_beams`` of them are not.
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
    """The smallest difference between two scores that decided something in one step of one sentence; inf if none did.

    Args:
        scores: scores of the candidates, best first: ``2 * num_beams + 1`` of them, or all if there are fewer.
        ends: for each candidate, whether it is the end token.
        num_beams: number of candidates that may finish, from the best on.
        last: whether this is the last step, which keeps the first ``num_beams`` candidates as they are.
        done: whether no candidate continues.
        top_matters: whether the result depends on which candidate is first.
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
        elif rank < num_beams:  # it finished; with a score below the first one outside it would not have
            margin = min(margin, score - outer)
        else:
            margin = min(margin, inner - score)
    if not done and num_beams < len(going):
        margin = min(margin, going[num_beams - 1] - going[num_beams])
    if top_matters and len(scores) > 1 and (ends[0] or ends[1]):
        margin = min(margin, scores[0] - scores[1])
    return margin
