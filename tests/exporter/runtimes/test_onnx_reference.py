"""The second ONNX runtime: right in float32, exact in float64, and one case's failure is its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from exported_models import KINDS, Exported
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch.nn import functional

from mytx.exporter.cases.case import Array, Case
from mytx.exporter.runtimes.lifting import exact, lift_constant
from mytx.exporter.runtimes.onnx_reference import NodeError, OnnxReference
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime

FLOAT, HALF, INT, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL
X = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 4)


def small(plan: list[Case]) -> list[Case]:
    return [case for case in plan if sum(array.size for array in case.inputs.values()) < 400][:6]


def write(
    path: Path,
    nodes: list[onnx.NodeProto],
    weights: dict[str, Array] | None = None,
    *,
    inputs: Mapping[str, int] | None = None,
    output: int = FLOAT,
    opset: int = 18,
) -> Path:
    """A model from ``x`` to ``y``."""
    given = [helper.make_tensor_value_info(name, kind, None) for name, kind in (inputs or {"x": FLOAT}).items()]
    graph = helper.make_graph(
        nodes,
        "test",
        given,
        [helper.make_tensor_value_info("y", output, None)],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), path)
    return path


def lifted(path: Path, **inputs: Array) -> Any:
    (result,) = OnnxReference.open(path, lifted=True).run(inputs or {"x": X}).values()
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_in_float32_it_agrees_with_onnxruntime(kind: str, exports: Callable[[str], Exported]) -> None:
    exported = exports(kind)
    for name in exported.graphs:
        reference, runtime = OnnxReference.open(exported.path(name)), OnnxRuntime.open(exported.path(name))
        for case in small(exported.plan(name)):
            (found,), (expected,) = reference.run(case.inputs).values(), runtime.run(case.inputs).values()
            assert found.dtype == expected.dtype
            assert np.allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_lifted_it_is_the_model_in_float64(kind: str, exports: Callable[[str], Exported]) -> None:
    exported = exports(kind)
    for name, graph in exported.graphs.items():
        cases = small(exported.plan(name))
        found = OnnxReference.open(exported.path(name), lifted=True).run_all([case.inputs for case in cases])
        exported.model.double()
        try:
            for case, result in zip(cases, found, strict=True):
                assert isinstance(result, dict)
                (values,) = result.values()
                given = {key: torch.from_numpy(array) for key, array in case.inputs.items()}
                given = {key: t.double() if t.is_floating_point() else t for key, t in given.items()}
                with torch.inference_mode():
                    expected = graph.module(**given).numpy()
                assert values.dtype == np.float64
                assert np.abs(values - expected).max() <= 1e-13 * np.abs(expected).max()
        finally:
            exported.model.float()


def test_the_contract_is_what_it_describes(translation: Exported) -> None:
    path, contract = translation.path("decoder"), translation.contract("decoder")
    plain, double = OnnxReference.open(path).describe(), OnnxReference.open(path, lifted=True).describe()
    assert plain.inputs == {spec.name: (spec.dtype, spec.labels) for spec in contract.inputs}
    assert double.outputs == {spec.name: ("float64", spec.labels) for spec in contract.outputs}
    assert double.inputs["tgt"][0] == "int64"
    assert plain.runtime != double.runtime


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


# --- many cases ------------------------------------------------------------------------------------------------------


def test_many_cases_at_once_are_as_one_at_a_time(translation: Exported) -> None:
    reference = OnnxReference.open(translation.path("full"), lifted=True)
    cases = small(translation.plan("full"))
    for case, result in zip(cases, reference.run_all([case.inputs for case in cases]), strict=True):
        assert isinstance(result, dict)
        np.testing.assert_array_equal(result["logits"], reference.run(case.inputs)["logits"])


def test_a_case_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="layer/MatMul_0"),
        helper.make_node("Neg", ["h"], ["y"]),
    ]
    reference = OnnxReference.open(write(tmp_path / "m.onnx", nodes, {"w": np.eye(4, dtype=np.float32)}))
    results = reference.run_all([{"x": X}, {"x": X[..., :3]}, {"z": X}, {"x": X.astype(np.int64)}, {"x": -X}])
    good, shape, name, dtype, last = results
    assert isinstance(good, dict)
    np.testing.assert_array_equal(good["y"], -X)
    assert isinstance(shape, NodeError)
    assert shape.node.name == "layer/MatMul_0"
    assert "layer/MatMul_0 (MatMul)" in str(shape)
    assert isinstance(name, ValueError)
    assert "z" in str(name)
    assert isinstance(dtype, ValueError)
    assert "int64" in str(dtype)
    assert isinstance(last, dict)
    with pytest.raises(NodeError):
        reference.run({"x": X[..., :3]})


def test_what_depends_on_no_input_fails_for_all(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["w", "shape"], ["v"]), helper.make_node("Add", ["x", "v"], ["y"])]
    weights: dict[str, Array] = {"w": np.ones(4, np.float32), "shape": np.array([3])}
    reference = OnnxReference.open(write(tmp_path / "m.onnx", nodes, weights))
    assert [type(result) for result in reference.run_all([{"x": X}, {"x": X}])] == [NodeError, NodeError]


def test_an_output_may_be_a_weight_an_input_or_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", [helper.make_node("Neg", ["x"], ["h"])], {"w": np.array([1], np.float32)})
    model = onnx.load(path)
    for output, expected in (("w", np.array([1.0])), ("x", X.astype(np.float64))):
        model.graph.output[0].name = output
        onnx.save(model, path)
        np.testing.assert_array_equal(lifted(path), expected)
    model.graph.output[0].name = "lost"
    onnx.save(model, path)
    with pytest.raises(ValueError, match="lost"):
        lifted(path)


def test_a_watcher_sees_and_replaces(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["y"])]
    seen: list[tuple[str, int]] = []

    class Watcher:
        def before(self, node: int, inputs: Mapping[int, list[Any]]) -> None:
            seen.append(("before", node))
            if node == 0:
                inputs[0][0] = inputs[0][0] + 1

        def after(self, node: int, outputs: Mapping[int, list[Any]]) -> None:
            seen.append(("after", node))
            if node == 0:
                outputs[1][0] = outputs[1][0] * 2

    reference = OnnxReference.open(write(tmp_path / "m.onnx", nodes), lifted=True)
    first, second = reference.run_all([{"x": X}, {"x": X}], Watcher())
    assert seen == [("before", 0), ("after", 0), ("before", 1), ("after", 1)]
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    np.testing.assert_array_equal(first["y"], X.astype(np.float64) + 1)
    np.testing.assert_array_equal(second["y"], X.astype(np.float64) * 2)
