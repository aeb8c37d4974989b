"""Ids and counts must be equal, except for sentences with two results that are equally right."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mytx.exporter.parity.compare import FAIL, PASS, Comparison, Expected, compare_values

# Three sentences with two results each, of up to three ids; 0 fills up.
TOKENS = np.array([[[5, 6, 7], [5, 6, 0]], [[8, 0, 0], [9, 9, 0]], [[4, 4, 4], [4, 0, 0]]], dtype=np.float64)
EXACT = Expected(TOKENS, 0.0, exact=True)
TIED = replace(EXACT, ties=(1,), pad=0)


def compared(actual: np.ndarray, expected: Expected = EXACT) -> Comparison:
    return compare_values("tokens", actual.astype(np.int64), expected)


def changed(place: tuple[int, ...], value: int) -> np.ndarray:
    tokens = TOKENS.copy()
    tokens[place] = value
    return tokens


def longer(tokens: np.ndarray, pad: int = 0) -> np.ndarray:
    return np.pad(tokens, [(0, 0), (0, 0), (0, 1)], constant_values=pad)


def test_the_same_ids_pass_with_every_element_counted() -> None:
    found = compared(TOKENS)
    assert (found.verdict, found.max_abs_error, found.ratio, found.elements) == (PASS, 0.0, 0.0, 18)
    assert found.ties == ()


def test_one_id_that_differs_fails_with_both_and_the_place() -> None:
    found = compared(changed((1, 0, 0), 3))
    assert (found.verdict, found.worst_index) == (FAIL, (1, 0, 0))
    assert found.reason == "3 where the model gives 8"
    assert found.ratio == math.inf
    assert not found.interface


def test_a_large_id_is_not_rounded_away() -> None:
    large = Expected(np.array([2.0**31]), 0.0, exact=True)
    assert compared(np.array([2**31]), large).verdict == PASS
    assert compared(np.array([2**31 + 1]), large).verdict == FAIL


@pytest.mark.parametrize("noise", [0.0, 5.0])
def test_noise_allows_no_other_id(noise: float) -> None:
    assert compared(changed((0, 0, 0), 6), replace(EXACT, noise=noise)).verdict == FAIL


@pytest.mark.parametrize("tokens", [longer(TOKENS), TOKENS[:, :, :2], TOKENS[:, :1], TOKENS[:2]])
def test_another_shape_fails(tokens: np.ndarray) -> None:
    found = compared(tokens)
    assert (found.verdict, found.interface) == (FAIL, True)
    assert found.reason == f"shape {list(tokens.shape)}, the model gives [3, 2, 3]"


# --- ties ------------------------------------------------------------------------------------------------------------


def test_a_tied_sentence_is_not_compared_and_the_others_are() -> None:
    found = compared(changed((1, 0, 0), 3), TIED)
    assert (found.verdict, found.elements, found.ties) == (PASS, 12, (1,))
    found = compared(changed((2, 1, 0), 3), TIED)
    assert (found.verdict, found.worst_index, found.ties) == (FAIL, (2, 1, 0), (1,))
    assert found.reason == "3 where the model gives 4"


def test_a_tied_sentence_may_make_the_output_longer_or_shorter() -> None:
    other = longer(TOKENS)
    other[1, 0] = 9
    assert compared(other, TIED).verdict == PASS
    short = replace(TIED, values=longer(TOKENS), ties=(1,))
    assert compared(TOKENS, short).verdict == PASS


def test_what_fills_up_must_be_the_padding_id() -> None:
    found = compared(longer(TOKENS, pad=7), TIED)
    assert (found.verdict, found.worst_index, found.reason) == (FAIL, (0, 0, 3), "7 where the model gives 0")


def test_a_longer_output_without_a_tie_fails() -> None:
    assert compared(longer(TOKENS), replace(EXACT, pad=0)).interface


@pytest.mark.parametrize("tokens", [TOKENS[:2], TOKENS[:, :1], TOKENS[0]])
def test_ties_excuse_no_other_batch_and_no_other_number_of_results(tokens: np.ndarray) -> None:
    found = compared(tokens, TIED)
    assert (found.verdict, found.interface) == (FAIL, True)
    assert "the model gives [3, 2, 3]" in found.reason


def test_where_all_sentences_tie_nothing_is_compared_and_that_is_counted() -> None:
    found = compared(TOKENS + 1, replace(TIED, ties=(0, 1, 2)))
    assert (found.verdict, found.elements, found.ties) == (PASS, 0, (0, 1, 2))


def test_lengths_of_tied_sentences_are_left_out_too() -> None:
    lengths = Expected(np.array([[3.0, 2.0], [1.0, 2.0], [3.0, 1.0]]), 0.0, exact=True, ties=(0,))
    assert compared(np.array([[1, 1], [1, 2], [3, 1]]), lengths).verdict == PASS
    found = compared(np.array([[3, 2], [1, 2], [3, 2]]), lengths)
    assert (found.verdict, found.worst_index, found.reason) == (FAIL, (2, 1), "2 where the model gives 1")


def test_scores_are_judged_by_rounding_in_the_sentences_that_do_not_tie() -> None:
    scores = Expected(np.array([[-1.0], [-2.0], [-3.0]]), 1e-6, ties=(0,))

    def judged(first: float, last: float) -> Comparison:
        return compare_values("scores", np.array([[first], [-2.0], [last]], dtype=np.float32), scores)

    assert judged(-1.5, -3.000001).verdict == PASS
    found = judged(-1.0, -3.1)
    assert (found.verdict, found.worst_index) == (FAIL, (2, 0))
    assert "allowed" in found.reason or "times" in found.reason or "e-" in found.reason


def test_nan_in_a_tied_sentence_is_not_seen_but_elsewhere_it_fails() -> None:
    scores = Expected(np.array([[-1.0], [-2.0]]), 1e-6, ties=(0,))
    for place, verdict in ((0, PASS), (1, FAIL)):
        actual = np.array([[-1.0], [-2.0]], dtype=np.float32)
        actual[place] = np.nan
        assert compare_values("scores", actual, scores).verdict == verdict


def test_no_ids_at_all_are_right_where_every_sentence_ends_at_once() -> None:
    none = np.zeros((2, 1, 0))
    expected = Expected(none, 0.0, exact=True, pad=0)
    assert compare_values("tokens", none.astype(np.int64), expected).verdict == PASS
    assert compare_values("tokens", np.ones((2, 1, 1), np.int64), expected).verdict == FAIL
    assert compare_values("memory", none, Expected(none, 0.0)).verdict == FAIL
