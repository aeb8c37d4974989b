"""Files with quantised weights of every precision: what is no plain product, and weights that are shared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from exported_models import Exported
from mytx.exporter.bundle.writing import write_shared
from mytx.exporter.formats.onnx.export import save
from mytx.exporter.formats.onnx.inner import inner_graphs
from mytx.exporter.formats.onnx.int4 import Int4
from mytx.exporter.formats.onnx.int8 import Int8
from mytx.exporter.formats.onnx.quantising import Rewriter, to_integers
from mytx.exporter.formats.onnx.shared_weights import SMALLEST
from mytx.exporter.formats.onnx.storage import read_values
from mytx.exporter.formats.quantisation import RULES, SCALE, quantise, quantised_weights
from mytx.exporter.formats.table import FORMATS, ExportOptions
from mytx.exporter.parity.prove import weights_of_file
from mytx.exporter.parity.weights import find_weights
from mytx.exporter.runtimes.onnx_reference import OnnxReference
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime

PRECISION = pytest.mark.parametrize("precision", RULES)

# --- shared weights --------------------------------------------------------------------------------------------------


@PRECISION
def test_shared_weights_stand_once_outside_of_the_loops(
    precision: str, exports: Callable[[str], Exported], tmp_path: Path
) -> None:
    known = FORMATS[precision]
    lively = exports("lively")
    graphs = {name: lively.every[name] for name in ("greedy", "generate")}
    write_shared(tmp_path, graphs, ["onnx", precision])
    for name, graph in graphs.items():
        save(lively.finished(name), tmp_path / f"{name}.onnx")
        known.load_exporter().export(graphs, name, tmp_path, ExportOptions())
        loaded = onnx.load(tmp_path / known.file(name), load_external_data=False).graph
        outer = [tensor for tensor in loaded.initializer if tensor.data_location == TensorProto.EXTERNAL]
        inner = [tensor for part in inner_graphs(loaded) for tensor in part.initializer]
        assert {item.value for tensor in outer for item in tensor.external_data if item.key == "location"} == {
            known.weights
        }
        assert not [tensor for tensor in inner if tensor.data_location == TensorProto.EXTERNAL]
        expected = weights_of_file(known, graph)
        large = {key for key, array in expected.items() if array.nbytes >= SMALLEST}
        assert large == {tensor.name for tensor in outer}
        assert find_weights(precision, tmp_path / known.file(name), expected) == []
        one = next(tensor for tensor in outer if tensor.name + SCALE in expected)
        assert read_values(one, tmp_path / "x").dtype == (np.int8 if precision == "int8" else np.uint8)
        src = np.array([[3, 4, 5]])
        given = {"src": src, "src_key_padding_mask": src == 0, "max_length": np.array(5), "min_length": np.array(2)}
        given |= {"length_penalty": np.array(1, np.float32)}
        if name == "generate":
            given |= {"num_beams": np.array(2), "num_hypotheses": np.array(1)}
        alone = OnnxRuntime.open(lively.quantised(name, precision)).run(given)
        assert {key: array.tolist() for key, array in alone.items()} == {
            key: array.tolist() for key, array in OnnxRuntime.open(tmp_path / known.file(name)).run(given).items()
        }


# --- what is not a plain product -------------------------------------------------------------------------------------

MATRIX = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)


def small(node: NodeProto, rewriter: Rewriter, shape: list[int | str], path: Path) -> Path:
    """``node`` with a matrix ``w [40, 50]``, in integers."""
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(MATRIX, "w")],
    )
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    to_integers(model, rewriter, {"w"})
    onnx.save(ir.to_proto(model), path)
    return path


@pytest.mark.parametrize(
    ("node", "shape", "right"),
    [
        (helper.make_node("Gemm", ["x", "w"], ["y"], "n", transB=1), [2, 50], lambda x, w: x @ w.T),
        (helper.make_node("Gemm", ["x", "w"], ["y"], "n", transB=1, alpha=2.0), [2, 50], lambda x, w: 2 * x @ w.T),
        (helper.make_node("Gemm", ["x", "w"], ["y"], "n", transA=1), [40, 2], lambda x, w: x.T @ w),
        (helper.make_node("Gemm", ["x", "w"], ["y"], "n"), [2, 40], lambda x, w: x @ w),
        (helper.make_node("MatMul", ["x", "w"], ["y"], "n"), [5, 2, 40], lambda x, w: x @ w),
        (helper.make_node("MatMul", ["w", "x"], ["y"], "n"), [50, 2], lambda x, w: w @ x),
        (helper.make_node("Add", ["x", "w"], ["y"], "n"), [40, 50], lambda x, w: x + w),
    ],
    ids=["plain", "times alpha", "turned left", "columns", "columns of many", "on the left", "no product"],
)
@pytest.mark.parametrize("rewriter", [Int8, Int4])
def test_a_matrix_that_is_read_in_another_way_is_computed_of_its_integers(
    rewriter: type[Rewriter],
    node: NodeProto,
    shape: list[int | str],
    right: Callable[[np.ndarray, np.ndarray], np.ndarray],
    tmp_path: Path,
) -> None:
    path = small(node, rewriter(), shape, tmp_path / "small.onnx")
    runtime = OnnxReference.open(path, lifted=True)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    found = runtime.run({"x": x})["y"]
    expected = right(x.astype(np.float64), quantise("w", MATRIX, rewriter.rule).floats.astype(np.float64))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    plain = node.op_type == "Gemm" and [item.name for item in node.attribute] == ["transB"]
    assert bool({"MatMulInteger", "MatMulNBits"} & {item.op_type for item in runtime.graph.node}) == plain
    assert {"w", "w" + SCALE} <= set(runtime.weights)
    rounding = 0.05 * np.abs(expected).max() if plain else 1e-4
    np.testing.assert_allclose(OnnxRuntime.open(path).run({"x": x})["y"], expected, rtol=0, atol=rounding)


@PRECISION
def test_the_weights_of_a_file_are_quantised_as_a_whole(precision: str, translation: Exported) -> None:
    graph = translation.every["decoder"]
    arrays = {name: tensor.numpy() for name, tensor in graph.weights().items()}
    found = quantised_weights(arrays, RULES[precision], graph.looked_up())
    assert set(weights_of_file(FORMATS[precision], graph)) == set(found) > set(arrays)
