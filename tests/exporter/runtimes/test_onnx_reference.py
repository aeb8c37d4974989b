"""onnx's reference runtime agrees with onnxruntime and with the model; a case that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from threadpoolctl import threadpool_info, threadpool_limits

from exported_models import KINDS, Exported
from mytx.exporter.cases.case import Array, Case
from mytx.exporter.runtimes.onnx_reference import NodeError, OnnxReference
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime
from small_onnx import X, lifted, write


def small(plan: list[Case]) -> list[Case]:
    return [case for case in plan if sum(array.size for array in case.inputs.values()) < 400][:6]


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


# --- many cases ------------------------------------------------------------------------------------------------------


def test_many_cases_at_once_are_as_one_at_a_time(translation: Exported) -> None:
    reference = OnnxReference.open(translation.path("full"), lifted=True)
    cases = small(translation.plan("full"))
    for case, result in zip(cases, reference.run_all([case.inputs for case in cases]), strict=True):
        assert isinstance(result, dict)
        # Rows that stand in a larger matrix are summed in another order: units in the last place.
        np.testing.assert_allclose(result["logits"], reference.run(case.inputs)["logits"], rtol=0, atol=1e-14)


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


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_numpy_has_one_thread_inside_and_as_many_as_before_outside(translation: Exported) -> None:
    class Threads:
        seen: set[int]

        def before(self, node: int, inputs: Mapping[int, list[Any]]) -> None:
            self.seen = blas_threads()

        def after(self, node: int, outputs: Mapping[int, list[Any]]) -> None:
            pass

    watcher = Threads()
    with threadpool_limits(2, "blas"):
        OnnxReference.open(translation.path("encoder")).run_all([translation.plan("encoder")[0].inputs], watcher)
        assert watcher.seen == {1}
        assert blas_threads() == {2}
