"""Files lifted to float64: constants, operators that round, and graphs inside nodes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch.nn import functional

from mytx.exporter.cases.case import Array
from mytx.exporter.runtimes.lifting import LiftedEvaluator, exact, lift_constant
from mytx.exporter.runtimes.onnx_reference import OnnxReference
from small_onnx import BOOL, FLOAT, HALF, INT, X, lifted, write

# --- constants -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [128**0.5, 64**-0.5, 32**-0.25, 0.5**0.5, 512**0.5, -(3**0.5), 1e-5, 1e-6, 1e-12, 0.1, 0.044715, 1.0, 7.0, 0.0],
)
def test_a_constant_becomes_the_number_that_it_was_rounded_from(number: float) -> None:
    assert exact(np.float32(number)) == number
    assert lift_constant(np.array([number], np.float32)).tolist() == [number]


@pytest.mark.parametrize("number", [math.inf, -math.inf, 0.123456789, 1e-30, 3.4e38])
def test_a_constant_never_moves_by_more_than_its_own_rounding(number: float) -> None:
    assert np.float32(exact(np.float32(number))) == np.float32(number)


@pytest.mark.parametrize("steps", [1, 2, 8])
def test_a_constant_that_is_off_stays_off(steps: int) -> None:
    off = np.float32(128**0.5)
    for _ in range(steps):
        off = np.nextafter(off, np.float32(100))
    assert abs(exact(off) - 128**0.5) > 0.4e-6


def test_what_is_not_a_single_number_is_not_a_constant() -> None:
    weights = np.array([0.1, 128**0.5], np.float32)
    assert lift_constant(weights).tolist() == weights.astype(np.float64).tolist()
    assert np.isnan(exact(np.float32(math.nan)))


# --- operators whose reference rounds --------------------------------------------------------------------------------


def test_erf_is_exact(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", [helper.make_node("Erf", ["x"], ["y"])])
    assert np.abs(lifted(path) - torch.erf(torch.from_numpy(X).double()).numpy()).max() < 1e-15


@pytest.mark.parametrize("opset", [20, 25])
def test_an_operator_that_stands_for_a_function_is_exact_in_it(opset: int, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", [helper.make_node("Gelu", ["x"], ["y"])], opset=opset)
    assert np.abs(lifted(path) - functional.gelu(torch.from_numpy(X).double()).numpy()).max() < 1e-15


def test_attention_whose_softmax_is_in_float32_is_in_float64(tmp_path: Path) -> None:
    node = helper.make_node("Attention", ["x", "x", "x"], ["y"], softmax_precision=FLOAT)
    path = write(tmp_path / "m.onnx", [node], opset=23)
    x = torch.from_numpy(X[None]).double()
    expected = functional.scaled_dot_product_attention(x, x, x).numpy()
    assert np.abs(lifted(path, x=X[None]) - expected).max() < 1e-14


NUMBER = 0.123456789  # no root and no short decimal


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Constant", [], ["c"], value_float=NUMBER),
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array([NUMBER], np.float32))),
        helper.make_node(
            "ConstantOfShape", ["one"], ["c"], value=numpy_helper.from_array(np.array([NUMBER], np.float32))
        ),
        helper.make_node("CastLike", ["w", "x"], ["c"]),
        helper.make_node("Cast", ["w"], ["c"], to=FLOAT),
        helper.make_node("Identity", ["w"], ["c"]),
    ],
    ids=lambda node: node.op_type,
)
def test_whatever_a_number_comes_from_it_is_float64(node: onnx.NodeProto, tmp_path: Path) -> None:
    weights = {"one": np.array([1]), "w": np.array([NUMBER], np.float32)}
    path = write(tmp_path / "m.onnx", [node, helper.make_node("Mul", ["x", "c"], ["y"])], weights)
    np.testing.assert_array_equal(lifted(path), X.astype(np.float64) * np.float64(np.float32(NUMBER)))


@pytest.mark.parametrize("kind", [HALF, TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN])
def test_a_cast_to_less_than_float32_still_rounds(kind: int, tmp_path: Path) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["less"], to=kind), helper.make_node("Cast", ["less"], ["y"], to=FLOAT)]
    path = write(tmp_path / "m.onnx", nodes, opset=19)
    rounded = X.astype(helper.tensor_dtype_to_np_dtype(kind)).astype(np.float64)
    np.testing.assert_array_equal(lifted(path), rounded)
    assert np.abs(rounded - X).max() > 1e-4


def test_integers_and_masks_stay_what_they_are(tmp_path: Path) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=BOOL)]
    assert lifted(write(tmp_path / "m.onnx", nodes, output=BOOL)).dtype == bool
    nodes = [helper.make_node("Shape", ["x"], ["y"])]
    np.testing.assert_array_equal(lifted(write(tmp_path / "m.onnx", nodes, output=INT)), [2, 3, 4])


# --- graphs inside nodes ---------------------------------------------------------------------------------------------


def subgraph(nodes: list[onnx.NodeProto], inputs: dict[str, int], outputs: dict[str, int]) -> onnx.GraphProto:
    def infos(values: dict[str, int]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, kind, None) for name, kind in values.items()]

    return helper.make_graph(nodes, "inner", infos(inputs), infos(outputs))


def loop(path: Path) -> Path:
    """y = x + 3 * (erf(w) + 0.1): reads a weight and an inner value from outside, and has a constant of its own."""
    body = subgraph(
        [
            helper.make_node("Constant", [], ["tenth"], value_float=0.1),
            helper.make_node("Erf", ["doubled"], ["erf"]),
            helper.make_node("Add", ["erf", "tenth"], ["more"]),
            helper.make_node("Add", ["state", "more"], ["next"]),
            helper.make_node("Identity", ["going"], ["still"]),
        ],
        {"step": INT, "going": BOOL, "state": FLOAT},
        {"still": BOOL, "next": FLOAT},
    )
    nodes = [
        helper.make_node("Add", ["w", "w"], ["doubled"]),
        helper.make_node("Loop", ["three", "true", "x"], ["y"], body=body),
    ]
    weights: dict[str, Array] = {"three": np.array(3), "true": np.array(True), "w": np.array([0.2], np.float32)}
    return write(path, nodes, weights)


def test_a_loop_sees_what_is_outside_of_it_and_is_lifted(tmp_path: Path) -> None:
    path = loop(tmp_path / "m.onnx")
    inside = torch.erf(torch.tensor(0.4, dtype=torch.float64)).item() + 0.1  # the constants as they were meant
    found = lifted(path)
    assert np.abs(found - (X.astype(np.float64) + 3 * inside)).max() < 1e-14
    (expected,) = ReferenceEvaluator(str(path)).run(None, {"x": X})
    np.testing.assert_array_equal(OnnxReference.open(path).run({"x": X})["y"], expected)


def test_a_branch_may_read_an_input_of_the_graph(tmp_path: Path) -> None:
    then = subgraph([helper.make_node("Mul", ["x", "w"], ["a"])], {}, {"a": FLOAT})
    other = subgraph([helper.make_node("Neg", ["x"], ["b"])], {}, {"b": FLOAT})
    nodes = [helper.make_node("If", ["condition"], ["y"], then_branch=then, else_branch=other)]
    inputs = {"x": FLOAT, "condition": BOOL}
    path = write(tmp_path / "m.onnx", nodes, {"w": np.array(0.1, np.float32)}, inputs=inputs)
    np.testing.assert_array_equal(lifted(path, x=X, condition=np.array(False)), -X.astype(np.float64))
    np.testing.assert_array_equal(lifted(path, x=X, condition=np.array(True)), X.astype(np.float64) * 0.1)


# --- integers --------------------------------------------------------------------------------------------------------


def integer_product(zero: str) -> onnx.ModelProto:
    """``x`` by a matrix of integers, with the zero point called ``zero``."""
    nodes = [
        onnx.helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        onnx.helper.make_node("MatMulInteger", ["q", "w", *([zero] if zero else [])], ["total"]),
        onnx.helper.make_node("Cast", ["total"], ["floats"], to=TensorProto.FLOAT),
        onnx.helper.make_node("Mul", ["floats", "scale"], ["y"]),
    ]
    ends = [onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in (("w", WHOLE), ("other", np.uint8(9)))]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)


WHOLE = np.array([[1, -2], [64, 3], [-64, 0]], np.int8)


@pytest.mark.parametrize(
    "x", [[[0.3, -1.7, 2.2]], [[0.0, 0.0, 0.0]], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [[-1.0, -2.0, 0.5]]]
)
def test_products_of_integers_are_not_rounded(x: list[list[float]]) -> None:
    given = np.array(x)
    (found,) = LiftedEvaluator(integer_product("zero")).run(None, {"x": given})
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, given @ WHOLE.astype(np.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("zero", ["", "other"])
def test_a_wrong_zero_point_shows_without_rounding(zero: str) -> None:
    given = np.array([[0.3, -1.7, 2.2]])
    (found,) = LiftedEvaluator(integer_product(zero)).run(None, {"x": given})
    assert np.abs(found - given @ WHOLE.astype(np.float64)).max() > 0.01
