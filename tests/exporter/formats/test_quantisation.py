"""The rules of int8 and int4: integers and scales of a matrix, exact, idempotent, and never out of range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from mytx.exporter import ExportError
from mytx.exporter.formats.quantisation import (
    BLOCK,
    LIMIT,
    LOOKUP_LIMIT,
    LOWEST,
    RULES,
    SCALE,
    TINY,
    Quantised,
    Rule,
    packed,
    quantise,
    quantised_weights,
    unpacked,
)

INT8, INT4 = RULES["int8"], RULES["int4"]
FLOATS = st.floats(-(2.0**90), 2.0**90, width=32)
MATRICES = arrays(np.float32, array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=7), elements=FLOATS)
WIDE = arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(16, 70)), elements=FLOATS)
RULE = pytest.mark.parametrize("rule", [INT8, INT4], ids=["int8", "int4"])


def rows_of(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), -1).astype(np.float64)


def blocks_of(matrix: np.ndarray, rule: Rule) -> np.ndarray:
    """What shares a scale, ``[R, blocks, values]``, filled up with 0."""
    rows = rows_of(matrix)
    width = BLOCK if rule is INT4 else rows.shape[1]
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % width))).reshape(len(rows), -1, width)


def integers_of(found: Quantised, rule: Rule) -> np.ndarray:
    """In the shape of :func:`blocks_of`."""
    return unpacked(found.values) if rule is INT4 else blocks_of(found.values, rule)


def scales_of(found: Quantised) -> np.ndarray:
    return found.scales.reshape(len(found.scales), -1, 1).astype(np.float64)


@RULE
@given(MATRICES | WIDE, st.booleans())
def test_a_value_is_off_by_half_a_step_at_most(rule: Rule, matrix: np.ndarray, looked_up: bool) -> None:
    """But in 4 bits by a whole one, where it is the largest but one, and has not the sign of the largest."""
    found = rule.quantise(matrix, looked_up)
    right = blocks_of(matrix, rule)
    step = np.where(np.abs(right).max(axis=-1, keepdims=True) < TINY, TINY, np.abs(scales_of(found)))
    end = integers_of(found, rule) == (7 if rule is INT4 else 999)
    off = np.abs(blocks_of(found.floats, rule) - right)
    assert (off <= np.where(end, 1, 0.5) * step * (1 + 1e-12)).all()


@RULE
@given(MATRICES | WIDE, st.booleans())
def test_the_largest_value_gets_the_largest_integer(rule: Rule, matrix: np.ndarray, looked_up: bool) -> None:
    limit = -LOWEST if rule is INT4 else LOOKUP_LIMIT if looked_up else LIMIT
    integers = integers_of(rule.quantise(matrix, looked_up), rule)
    nothing = np.abs(blocks_of(matrix, rule)).max(axis=-1) < TINY
    assert (np.abs(integers).max(axis=-1) == np.where(nothing, 0, limit)).all()
    assert (integers.min() if rule is INT4 else -np.abs(integers).max()) >= -limit


@RULE
@given(MATRICES | WIDE, st.booleans())
def test_an_integer_times_its_scale_is_a_float32_exactly(rule: Rule, matrix: np.ndarray, looked_up: bool) -> None:
    found = rule.quantise(matrix, looked_up)
    assert found.values.dtype == (np.uint8 if rule is INT4 else np.int8)
    assert found.scales.dtype == found.floats.dtype == np.float32
    assert found.floats.shape == matrix.shape
    assert (blocks_of(found.floats, rule) == integers_of(found, rule) * scales_of(found)).all()


@RULE
@given(MATRICES | WIDE, st.booleans())
def test_to_quantise_again_changes_nothing(rule: Rule, matrix: np.ndarray, looked_up: bool) -> None:
    once = rule.quantise(matrix, looked_up)
    again = rule.quantise(once.floats, looked_up)
    assert (again.values == once.values).all()
    assert (again.scales == once.scales).all()


@RULE
@settings(max_examples=20)
@given(arrays(np.float32, (3, 5), elements=st.floats(-10, 10, width=32)), st.integers(0, 2))
def test_a_row_depends_on_no_other(rule: Rule, matrix: np.ndarray, row: int) -> None:
    other = np.full_like(matrix, 1000.0)
    other[row] = matrix[row]
    assert (rule.quantise(matrix, False).values[row] == rule.quantise(other, False).values[row]).all()


def test_no_two_products_of_a_byte_overflow_16_bits() -> None:
    assert 2 * 255 * LIMIT < 2**15 <= 2 * 255 * (LIMIT + 1)


@given(
    arrays(np.int8, st.tuples(st.integers(1, 3), st.integers(1, 4).map(lambda n: 2 * n)), elements=st.integers(-8, 7))
)
def test_two_integers_of_4_bits_are_in_a_byte(values: np.ndarray) -> None:
    bytes_ = packed(values)
    assert bytes_.shape == (len(values), values.shape[1] // 2)
    assert (bytes_[:, 0] == values[:, 0] + 8 + 16 * (values[:, 1] + np.int32(8))).all()
    assert (unpacked(bytes_) == values).all()


@RULE
@pytest.mark.parametrize("value", [0.0, 1e-40, TINY / 2])
def test_a_row_of_nothing_is_zero_and_finite(rule: Rule, value: float) -> None:
    found = rule.quantise(np.array([[value, -value], [1.0, -2.0]], np.float32), False)
    assert (found.floats[0] == 0).all()
    assert (scales_of(found)[0] == (1 if rule is INT8 else 0)).all()
    assert (found.floats[1] == [1, -2]).all()


def test_of_4_bits_the_largest_is_the_one_integer_more_that_is_negative() -> None:
    found = INT4.quantise(np.array([[1.0, 4.0] * 16, [1.0, -4.0] * 16], np.float32), False)
    assert (unpacked(found.values)[:, 0, :2] == [[-2, -8], [2, -8]]).all()
    assert (found.scales == [[-0.5], [0.5]]).all()


@RULE
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_its_name(rule: Rule, value: float) -> None:
    matrix = np.array([[1.0, 2.0], [value, 1.0]], np.float32)
    with pytest.raises(ExportError, match=r"decoder\.w has values that are NaN or infinite") as raised:
        quantise("decoder.w", matrix, rule)
    assert "fp32" in raised.value.hint


@pytest.mark.parametrize(
    ("shape", "in_int8", "in_int4"),
    [
        ((7, 5), True, False),
        ((2, 2), True, False),
        ((2, 15), True, False),
        ((2, 16), True, True),
        ((64, 1, 8), True, False),
        ((64, 1, 80), True, True),
        ((50,), False, False),
        ((1, 50), False, False),
        ((50, 1), False, False),
        ((), False, False),
    ],
)
@RULE
def test_vectors_and_single_rows_and_columns_are_left(
    rule: Rule, shape: tuple[int, ...], in_int8: bool, in_int4: bool
) -> None:
    taken = in_int8 if rule is INT8 else in_int4
    found = quantised_weights({"w": np.ones(shape, np.float32)}, rule)
    assert set(found) == ({"w", "w" + SCALE} if taken else {"w"})
    assert (found["w"].dtype != np.float32) == taken


def test_what_is_only_looked_up_has_finer_steps() -> None:
    weights: dict[str, Any] = {"table": np.eye(3, dtype=np.float32), "product": 2 * np.eye(3, dtype=np.float32)}
    found = quantised_weights(weights, INT8, {"table"})
    assert found["table"].max() == LOOKUP_LIMIT
    assert found["product"].max() == LIMIT
    assert found["table" + SCALE].shape == (3, 1)


@RULE
def test_names_that_are_tied_share_their_integers(rule: Rule) -> None:
    matrix = np.eye(32, dtype=np.float32)
    found = quantised_weights({"one": matrix, "two": matrix, "other": matrix.copy()}, rule)
    assert found["one"] is found["two"]
    assert found["one"] is not found["other"]
