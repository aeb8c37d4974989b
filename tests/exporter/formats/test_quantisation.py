"""The rule of int8: integers and scales of a matrix, exact, idempotent, and never out of range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from mytx.exporter import ExportError
from mytx.exporter.formats.quantisation import (
    LIMIT,
    LOOKUP_LIMIT,
    SCALE,
    TINY,
    is_matrix,
    quantise,
    quantised_weights,
)

FLOATS = st.floats(-(2.0**90), 2.0**90, width=32)
MATRICES = arrays(np.float32, array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=7), elements=FLOATS)
LIMITS = st.sampled_from([LIMIT, LOOKUP_LIMIT])


def rows_of(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), -1).astype(np.float64)


@given(MATRICES, LIMITS)
def test_a_value_is_off_by_half_a_step_at_most(matrix: np.ndarray, limit: int) -> None:
    found = quantise("w", matrix, limit)
    step = np.where(np.abs(rows_of(matrix)).max(axis=1) < TINY, TINY, rows_of(found.scales)[:, 0])
    assert (np.abs(rows_of(found.floats()) - rows_of(matrix)) <= 0.5 * step[:, None] * (1 + 1e-12)).all()


@given(MATRICES, LIMITS)
def test_the_largest_value_of_a_row_gets_the_largest_integer(matrix: np.ndarray, limit: int) -> None:
    largest = np.abs(rows_of(quantise("w", matrix, limit).values)).max(axis=1)
    assert (largest == np.where(np.abs(rows_of(matrix)).max(axis=1) < TINY, 0, limit)).all()


@given(MATRICES, LIMITS)
def test_an_integer_times_its_scale_is_a_float32_exactly(matrix: np.ndarray, limit: int) -> None:
    found = quantise("w", matrix, limit)
    assert found.values.dtype == np.int8
    assert found.scales.dtype == np.float32
    exact = found.values.astype(np.float64) * found.scales.astype(np.float64)
    assert (found.floats().astype(np.float64) == exact).all()


@given(MATRICES, LIMITS)
def test_to_quantise_again_changes_nothing(matrix: np.ndarray, limit: int) -> None:
    once = quantise("w", matrix, limit)
    again = quantise("w", once.floats(), limit)
    assert (again.values == once.values).all()
    assert (again.scales == once.scales).all()


@settings(max_examples=20)
@given(arrays(np.float32, (3, 5), elements=st.floats(-10, 10, width=32)), st.integers(0, 2))
def test_a_row_depends_on_no_other(matrix: np.ndarray, row: int) -> None:
    other = np.full_like(matrix, 1000.0)
    other[row] = matrix[row]
    assert (quantise("w", matrix).values[row] == quantise("w", other).values[row]).all()


def test_no_two_products_of_a_byte_overflow_16_bits() -> None:
    assert 2 * 255 * LIMIT < 2**15 <= 2 * 255 * (LIMIT + 1)


@pytest.mark.parametrize("value", [0.0, 1e-40, TINY / 2])
def test_a_row_of_nothing_is_zero_and_finite(value: float) -> None:
    matrix = np.array([[value, -value], [1.0, -2.0]], np.float32)
    found = quantise("w", matrix)
    assert (found.values[0] == 0).all()
    assert found.scales[0] == 1
    assert (found.values[1] == [32, -64]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_its_name(value: float) -> None:
    matrix = np.array([[1.0, 2.0], [value, 1.0]], np.float32)
    with pytest.raises(ExportError, match=r"decoder\.w has values that are NaN or infinite") as raised:
        quantise("decoder.w", matrix)
    assert "fp32" in raised.value.hint


@pytest.mark.parametrize(
    ("shape", "is_one"),
    [((7, 5), True), ((2, 2), True), ((64, 1, 8), True), ((5,), False), ((1, 5), False), ((5, 1), False), ((), False)],
)
def test_vectors_and_single_rows_and_columns_are_left(shape: tuple[int, ...], is_one: bool) -> None:
    assert is_matrix(shape) is is_one
    found = quantised_weights({"w": np.ones(shape, np.float32)})
    assert set(found) == ({"w", "w" + SCALE} if is_one else {"w"})
    assert found["w"].dtype == (np.int8 if is_one else np.float32)


def test_what_is_only_looked_up_has_finer_steps() -> None:
    weights: dict[str, Any] = {"table": np.eye(3, dtype=np.float32), "product": 2 * np.eye(3, dtype=np.float32)}
    found = quantised_weights(weights, {"table"})
    assert found["table"].max() == LOOKUP_LIMIT
    assert found["product"].max() == LIMIT
    assert found["table" + SCALE].shape == (3, 1)


def test_names_that_are_tied_share_their_integers() -> None:
    matrix = np.eye(4, dtype=np.float32)
    found = quantised_weights({"one": matrix, "two": matrix, "other": matrix.copy()})
    assert found["one"] is found["two"]
    assert found["one"] is not found["other"]
