"""The parts of the search: ranking, continuing, and the distance to the next best choice."""

from __future__ import annotations

import math

import pytest
import torch

from mytx.models.ranking import best_of, step_margin, successors


def test_equal_candidates_rank_by_their_place() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0, 5.0, 0.0]])
    values, places = best_of(scores, 4)
    assert values.tolist() == [[3.0, 3.0, 3.0, 2.0], [5.0, 0.0, 0.0, 0.0]]
    assert places.tolist() == [[1, 3, 5, 2], [4, 0, 1, 2]]


@pytest.mark.parametrize("count", [1, 3, 40])
def test_ranking_is_a_stable_sort(count: int) -> None:
    scores = torch.randint(0, 12, (5, 40), generator=torch.Generator().manual_seed(count)).double()
    scores[0, ::3] = -math.inf
    expected = torch.sort(scores, stable=True, dim=1, descending=True)
    values, places = best_of(scores, count)
    assert torch.equal(values, expected.values[:, :count])
    assert torch.equal(places, expected.indices[:, :count])


def test_the_best_candidates_without_the_end_token_go_on_each_in_its_place() -> None:
    assert successors([False, False, True, True], 2) == [0, 1]
    assert successors([True, False, False, False], 2) == [2, 1]
    assert successors([True, False, True, False, False, True], 3) == [3, 1, 4]
    assert successors([False, True, True, True, False, False, False], 3) == [0, 4, 5]


def test_the_margin_is_the_smallest_difference_that_decided() -> None:
    scores, none = [-1.0, -3.0, -3.5, -5.0, -9.0], [False] * 5
    assert step_margin(scores, none, 2, last=False, done=False, top_matters=False) == 0.5
    assert step_margin(scores, none, 2, last=True, done=True, top_matters=False) == 0.5
    assert step_margin(scores, none, 2, last=False, done=True, top_matters=False) == math.inf
    # The first ended: it is 2.5 above what would not have been kept; the third goes on, the fourth is 1.5 below it.
    assert step_margin(scores, [True, *none[1:]], 2, last=False, done=False, top_matters=False) == 1.5
    assert step_margin(scores, [True, *none[1:]], 2, last=False, done=True, top_matters=False) == 2.5
    assert step_margin(scores, [True, *none[1:]], 2, last=False, done=True, top_matters=True) == 2.0
    # An end token that only just did not make it.
    assert step_margin(scores, [False, False, True, False, False], 2, last=False, done=False, top_matters=False) == 0.5
