"""A product with a weight for all cases at once gives what it gives for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from mytx.exporter.runtimes.products import is_product, products_together

W, B = np.arange(12.0).reshape(3, 4), np.arange(4.0)
COMMON: dict[str, Any] = {"w": W, "b": B, "cube": np.ones((2, 3, 4)), "row": np.ones((1, 4))}


def node(op_type: str, *names: str, **attributes: Any) -> Any:
    return helper.make_node(op_type, names, ["y"], **attributes)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (node("MatMul", "x", "w"), True),
        (node("Gemm", "x", "w", "b"), True),
        (node("Gemm", "x", "w", transB=1), True),
        (node("Gemm", "x", "w", "b", transA=1), False),  # its rows are no rows
        (node("Gemm", "x", "w", "row"), False),  # may be one for each row
        (node("Gemm", "x", "w", "of_the_case"), False),
        (node("MatMul", "x", "cube"), False),
        (node("MatMul", "x", "of_the_case"), False),
        (node("MatMul", "w", "x"), False),
        (node("Add", "x", "w"), False),
        (node("MatMul", "x", "w", domain="mine"), False),
    ],
    ids=str,
)
def test_it_is_a_product_of_rows_that_depend_on_the_case_with_a_matrix_that_does_not(found: Any, wanted: bool) -> None:
    assert is_product(found, COMMON) is wanted


def test_each_case_gets_its_own_rows_in_its_own_shape() -> None:
    rng = np.random.default_rng(0)
    inputs = {
        n: [rng.standard_normal((*shape, 3)), W] for n, shape in {0: (2, 5), 3: (7,), 4: (1, 0), 9: (2, 2, 2)}.items()
    }
    asked = []

    def run(arrays: Any) -> list[Any]:
        asked.append(arrays[0].shape)
        return [arrays[0] @ arrays[1]]

    found = products_together(run, inputs)
    assert asked == [(25, 3)]
    assert list(found) == list(inputs)
    for case, (result,) in found.items():
        assert result.shape == (*inputs[case][0].shape[:-1], 4)
        assert np.allclose(result, inputs[case][0] @ W, rtol=1e-14)


@pytest.mark.parametrize(
    "arrays",
    [
        [np.ones((2, 3))],
        [np.ones((2, 3)), np.ones((2, 5))],
        [np.ones((2, 3)), np.ones(3)],
        [np.ones((2, 3)), np.ones((2, 3), np.float32)],
        [np.ones((2, 5)), np.ones((2, 5))],  # which the weight does not fit
    ],
    ids=["one", "widths", "a vector", "dtypes", "all wrong"],
)
def test_what_does_not_fit_together_is_left_to_each(arrays: list[Any]) -> None:
    inputs = {number: [array, W] for number, array in enumerate(arrays)}
    assert products_together(lambda given: [given[0] @ given[1]], inputs) == {}
