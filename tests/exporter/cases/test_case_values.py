"""The arrays of a case: padding, attention masks and disturbed values."""

from __future__ import annotations

import numpy as np
import pytest

from mytx.exporter.cases.plan import attention_mask, disturb, fill, make_plan, padding_mask
from mytx.exporter.contracts.contract import TensorSpec
from plans import BATCH, CONTRACTS, SOURCE, TARGET, sizes


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 2), (4, 31)])
@pytest.mark.parametrize("seed", range(20))
def test_padding_leaves_a_real_position_in_each_row_unless_it_is_whole(shape: tuple[int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for kind in ("none", "right", "left", "holes"):
        assert not padding_mask(shape, kind, rng).all(1).any()
    assert padding_mask(shape, "whole row", rng).all(1).any()
    assert padding_mask(shape, "everything", rng).all()


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (3, 31), (6, 4, 9)])
@pytest.mark.parametrize("seed", range(20))
def test_only_the_mask_with_dead_rows_has_rows_that_may_attend_nowhere(shape: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for kind in ("none", "causal", "random", "asymmetric"):
        assert not attention_mask(shape, kind, rng).all(-1).any()
    assert attention_mask(shape, "dead rows", rng).all(-1).any(-1).all()


def test_the_causal_mask_hides_what_comes_later() -> None:
    expected = [[False, True, True], [False, False, True]]
    assert attention_mask((2, 3), "causal", np.random.default_rng(0)).tolist() == expected
    assert attention_mask((4, 2, 3), "causal", np.random.default_rng(0)).tolist() == [expected] * 4


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("limit", [2, 3, 224])
def test_disturbed_ids_are_other_ids_of_the_vocabulary(seed: int, limit: int) -> None:
    rng = np.random.default_rng(seed)
    spec = TensorSpec("src", "int64", (BATCH, SOURCE), role="ids", limit=limit)
    ids = fill(spec, {"batch": 3, "source": 9}, "none", "none", rng)
    other = disturb(spec, ids, rng)
    assert (other != ids).all()
    assert other.min() >= 0
    assert other.max() < limit


def test_a_disturbed_float_mask_opens_what_was_hidden_and_moves_the_rest() -> None:
    rng = np.random.default_rng(0)
    spec = TensorSpec("tgt_mask", "float32", (TARGET, TARGET), role="attention")
    mask = fill(spec, {"target": 9}, "none", "random", rng)
    other = disturb(spec, mask, rng)
    hidden = np.isneginf(mask)
    assert hidden.any()
    assert not hidden.all()
    assert (other[hidden] == 0).all()
    assert (other[~hidden] != mask[~hidden]).all()
    assert np.isfinite(other).all()


@pytest.mark.parametrize("name", ["translation: encoder", "bare: encoder", "bare: full"])
def test_long_sentences_alone_are_tried_at_every_level_of_optimisation(name: str) -> None:
    """Whichever of batch and length comes first."""
    contract = CONTRACTS[name]
    alone = [case for case in make_plan(contract) if case.core and not case.small]
    assert alone
    assert all(sizes(contract, case)["batch"] == 1 for case in alone)
