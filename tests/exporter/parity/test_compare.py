"""The rule of comparison, with a planted fault for each part of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mytx.exporter.contracts.contract import Axis, Contract, TensorSpec
from mytx.exporter.parity.compare import (
    EXACT,
    FACTOR,
    FAIL,
    NOISE_LIMIT,
    NOT_JUDGED,
    PASS,
    ULP,
    Comparison,
    Expected,
    compare_case,
    compare_values,
)

SPEC = TensorSpec("y", "float32", (Axis("batch"), 5, 8))
SECOND = TensorSpec("z", "float32", (Axis("batch"),))
CONTRACT = Contract("full", (), (SPEC,), "batch first")
NOISE = 2.0**-20


def values(*shape: int) -> np.ndarray:
    """float32 numbers, the largest of which is 2."""
    array = np.random.default_rng(0).uniform(-1, 1, shape or (2, 5, 8)).astype(np.float32)
    array.flat[-1] = 2.0
    return array


def expected(array: np.ndarray | None = None, noise: float = NOISE) -> Expected:
    return Expected((values() if array is None else array).astype(np.float64), noise)


def compare(actual: dict[str, Any], reference: dict[str, Expected] | None = None) -> list[Comparison]:
    return compare_case(CONTRACT, actual, {"y": expected()} if reference is None else reference)


def test_equal_values_pass() -> None:
    (result,) = compare({"y": values()})
    assert replace(result, allowed=None, spread=()) == Comparison("y", 0.0, NOISE, 0.0, PASS, (0, 0, 0), "", 80)
    assert result.spread[0] == sum(result.spread) == 80  # all errors are 0


def test_a_missing_output_fails_and_the_others_are_still_compared() -> None:
    contract = Contract("full", (), (SPEC, SECOND), "batch first")
    references = {"y": expected(), "z": expected(values(3))}
    results = compare_case(contract, {"z": values(3)}, references)
    assert [(result.output, result.verdict) for result in results] == [("y", FAIL), ("z", PASS)]
    assert "did not give" in results[0].reason
    assert results[0].elements == 0


def test_no_outputs_at_all_fail() -> None:
    assert [result.verdict for result in compare({})] == [FAIL]


def test_a_surplus_output_fails() -> None:
    results = compare({"y": values(), "attention": values()})
    assert {result.output: result.verdict for result in results} == {"y": PASS, "attention": FAIL}
    assert "contract does not have" in results[0].reason


def test_an_output_without_a_reference_fails() -> None:
    (result,) = compare({"y": values()}, {})
    assert (result.verdict, result.elements) == (FAIL, 0)
    assert "no reference" in result.reason


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "bool"])
def test_a_wrong_dtype_fails_even_with_the_right_values(dtype: str) -> None:
    ones = np.ones((2, 5, 8))
    (result,) = compare({"y": ones.astype(dtype)}, {"y": expected(ones)})
    assert result.verdict == FAIL
    assert dtype in result.reason
    assert "float32" in result.reason


@pytest.mark.parametrize(
    "shape", [(1, 5, 8), (2, 1, 8), (2, 5, 1), (5, 8), (2, 40), (80,), (1, 2, 5, 8), (3, 5, 8), ()]
)
def test_a_wrong_shape_fails_even_where_it_would_broadcast(shape: tuple[int, ...]) -> None:
    (result,) = compare({"y": np.ones(shape, np.float32)}, {"y": expected(np.ones((2, 5, 8)))})
    assert result.verdict == FAIL
    assert str(list(shape)) in result.reason
    assert "[2, 5, 8]" in result.reason


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_one_number_that_is_not_finite_fails_and_is_named(broken: float) -> None:
    actual = values()
    actual[1, 2, 3] = broken
    (result,) = compare({"y": actual})
    assert (result.verdict, result.worst_index) == (FAIL, (1, 2, 3))
    assert str(broken) in result.reason
    assert not result.max_abs_error <= 1e30


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_reference_that_is_not_finite_fails_even_where_the_graph_agrees(broken: float) -> None:
    array = values()
    array[0, 0, 0] = broken
    (result,) = compare({"y": array}, {"y": expected(array)})
    assert result.verdict == FAIL
    assert "the model itself" in result.reason


def test_nothing_to_compare_fails() -> None:
    (result,) = compare({"y": np.zeros((0, 5, 8), np.float32)}, {"y": expected(np.zeros((0, 5, 8)))})
    assert result.verdict == FAIL
    assert "empty" in result.reason


@pytest.mark.parametrize("scale", [2.0**-60, 1.0, 2.0, 2.0**60])
@pytest.mark.parametrize("noise_in_ulps", [0, 1, 3, 1000])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_budget_is_four_times_noise_plus_four_ulps_of_the_largest_value(
    scale: float, noise_in_ulps: int, sign: int
) -> None:
    """All numbers are exact in binary, so that the bound itself passes and the next float above it does not."""
    noise = noise_in_ulps * ULP * scale
    budget = 4 * noise + 4 * ULP * scale
    reference = np.array([scale, 0.0, -scale / 2])
    for error, verdict in ((budget, PASS), (math.nextafter(budget, math.inf), FAIL), (1.5 * budget, FAIL), (0, PASS)):
        actual = np.array([scale, sign * error, -scale / 2])  # float64: the error must not be rounded
        result = compare_values("y", actual, Expected(reference, noise))
        assert result.verdict == verdict
        assert result.max_abs_error == error
        assert result.elements == 3
        assert math.isclose(result.ratio, 4 * error / budget, rel_tol=1e-12)
        if error:
            assert result.worst_index == (1,)


def test_the_factor_and_the_ulp_are_those_of_the_rule() -> None:
    assert (FACTOR, ULP, NOISE_LIMIT) == (4.0, 2.0**-23, 1e-3)


def test_the_scale_is_the_largest_value_of_the_reference_not_of_the_graph() -> None:
    reference = Expected(np.array([1.0, -1.0]), 0.0)
    result = compare_values("y", np.array([1000.0, -1.0], np.float32), reference)
    assert result.verdict == FAIL
    assert result.ratio == pytest.approx(999 / ULP)


def test_one_wrong_element_among_many_fails_and_is_named() -> None:
    actual = values(3, 100, 100)
    reference = expected(actual)
    actual[2, 71, 14] += 1e-3
    result = compare_values("y", actual, reference)
    assert (result.verdict, result.worst_index) == (FAIL, (2, 71, 14))
    assert result.max_abs_error == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("factor", [EXACT, 1.0, FACTOR, 100.0])
def test_another_factor_allows_so_many_times_the_noise_and_the_ratio_stays(factor: float) -> None:
    allowance = NOISE + ULP * 2.0
    for part, verdict in ((0.99, PASS), (1.01, FAIL)):
        actual = values().astype(np.float64)
        actual[0, 0, 0] += part * factor * allowance
        result = compare_values("y", actual, expected(), factor)
        assert result.verdict == verdict
        assert math.isclose(result.ratio, part * factor, rel_tol=1e-6)
        if verdict == FAIL:
            assert f"{factor:g} allowed" in result.reason


def test_in_float64_far_less_is_allowed_than_in_float32() -> None:
    assert (EXACT, FACTOR) == (0.1, 4.0)
    actual = values().astype(np.float64)
    actual[0, 0, 0] += NOISE
    assert compare_values("y", actual, expected()).verdict == PASS
    assert compare_values("y", actual, expected(), EXACT).verdict == FAIL


def test_a_lifted_contract_asks_for_float64() -> None:
    actual = values().astype(np.float64)
    (result,) = compare_case(CONTRACT.lifted(), {"y": actual}, {"y": expected()}, EXACT)
    assert result.verdict == PASS
    (result,) = compare_case(CONTRACT.lifted(), {"y": values()}, {"y": expected()}, EXACT)
    assert (result.verdict, result.interface) == (FAIL, True)
    assert "dtype float32, the contract says float64" in result.reason


@pytest.mark.parametrize(
    ("actual", "interface"),
    [
        ({}, True),
        ({"y": values().astype(np.float64)}, True),
        ({"y": values()[:1]}, True),
        ({"y": np.zeros((0, 5, 8), np.float32)}, True),
        ({"y": values() + 1}, False),
        ({"y": np.full((2, 5, 8), np.nan, np.float32)}, False),
    ],
)
def test_wrong_names_dtypes_and_shapes_are_told_from_wrong_values(actual: dict[str, Any], interface: bool) -> None:
    (result,) = compare(actual)
    assert (result.verdict, result.interface) == (FAIL, interface)


def test_noise_at_the_limit_is_judged_and_above_it_is_not() -> None:
    for noise, verdict in ((NOISE_LIMIT * 2, PASS), (math.nextafter(NOISE_LIMIT * 2, 1), NOT_JUDGED)):
        result = compare_values("y", values(), expected(noise=noise))
        assert result.verdict == verdict


@pytest.mark.parametrize("noise", [0.01, 1.0, 1e30, math.inf])
def test_with_too_much_noise_equal_values_do_not_pass(noise: float) -> None:
    result = compare_values("y", values(), expected(noise=noise))
    assert result.verdict == NOT_JUDGED
    assert "too large to judge by" in result.reason


def test_with_too_much_noise_a_large_error_still_fails() -> None:
    result = compare_values("y", values() + 1, expected(noise=0.1))
    assert result.verdict == FAIL


def test_noise_that_is_not_a_number_never_passes() -> None:
    assert compare_values("y", values(), expected(noise=math.nan)).verdict == NOT_JUDGED
    assert compare_values("y", values() + np.float32(1e-6), expected(noise=math.nan)).verdict == FAIL


@pytest.mark.parametrize(
    ("error", "noise", "verdict"),
    [(0.0, 0.0, PASS), (1e-30, 0.0, FAIL), (0.0, 1e-30, NOT_JUDGED), (1e-3, 1e-30, FAIL)],
)
def test_a_reference_of_zeros_has_no_scale_to_forgive_by(error: float, noise: float, verdict: str) -> None:
    actual = np.zeros((2, 5, 8), np.float32)
    actual[1, 4, 7] = error
    result = compare_values("y", actual, expected(np.zeros((2, 5, 8)), noise))
    assert result.verdict == verdict


# --- a reference at some positions only ------------------------------------------------------------------------------

WHOLE = values()
POSITIONS = np.array([0, 7, 43, 79])
THINNED = Expected(WHOLE.ravel()[POSITIONS].astype(np.float64), NOISE, POSITIONS, (2, 5, 8), 2.0)


def test_a_thinned_reference_is_compared_at_its_positions() -> None:
    result = compare_values("y", WHOLE, THINNED)
    assert (result.verdict, result.elements) == (PASS, 4)
    actual = WHOLE.copy()
    actual.flat[43] += 0.01
    result = compare_values("y", actual, THINNED)
    assert (result.verdict, result.worst_index) == (FAIL, (1, 0, 3))


@pytest.mark.parametrize("shape", [(4,), (1, 5, 8), (80,), (2, 8, 5)])
def test_a_thinned_reference_still_fixes_the_whole_shape(shape: tuple[int, ...]) -> None:
    assert compare_values("y", np.resize(WHOLE, shape), THINNED).verdict == FAIL


def test_a_thinned_reference_still_refuses_nan_anywhere() -> None:
    actual = WHOLE.copy()
    actual[0, 0, 1] = math.nan
    result = compare_values("y", actual, THINNED)
    assert (result.verdict, result.worst_index) == (FAIL, (0, 0, 1))


def test_a_thinned_reference_keeps_the_scale_of_the_whole_output() -> None:
    small = Expected(np.array([0.0]), 0.0, np.array([3]), (2, 5, 8), 2.0)
    actual = np.zeros((2, 5, 8), np.float32)
    for error, verdict in ((4 * ULP * 2.0, PASS), (4.5 * ULP * 2.0, FAIL)):
        actual.flat[3] = error
        assert compare_values("y", actual, small).verdict == verdict
