"""Files in int8: every product with a matrix is of integers, also in loops, and the weights stand once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from exported_models import KINDS, Exported, build
from mytx.exporter.bundle.writing import write_shared
from mytx.exporter.formats.onnx import int8
from mytx.exporter.formats.onnx.export import save, to_onnx
from mytx.exporter.formats.onnx.inner import inner_graphs
from mytx.exporter.formats.onnx.shared_weights import SMALLEST
from mytx.exporter.formats.onnx.storage import read_values
from mytx.exporter.formats.quantisation import LIMIT, LOOKUP_LIMIT, SCALE, quantise, quantised_weights
from mytx.exporter.formats.table import ExportOptions
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.parity.prove import weights_of_file
from mytx.exporter.parity.weights import find_weights
from mytx.exporter.quiet import quiet
from mytx.exporter.runtimes.onnx_reference import OnnxReference
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime
from mytx.models import CoupletModel
from planting import all_graphs
from planting_loops import body_of

KIND = pytest.mark.parametrize("kind", KINDS)


def nodes(graph: GraphProto) -> list[NodeProto]:
    return [node for part in all_graphs(graph) for node in part.node]


def tensors(graph: GraphProto) -> dict[str, TensorProto]:
    return {tensor.name: tensor for part in all_graphs(graph) for tensor in part.initializer}


@KIND
def test_every_product_with_a_weight_is_of_integers_and_no_matrix_of_floats_is_left(
    kind: str, exports: Callable[[str], Exported]
) -> None:
    exported = exports(kind)
    for name in exported.graphs:
        before, after = (onnx.load(path).graph for path in (exported.path(name), exported.int8_path(name)))
        kinds = [[node.op_type for node in nodes(graph)] for graph in (before, after)]
        weights = {key for key, tensor in exported.every[name].weights().items() if tensor.dim() > 1}
        multiplied = weights - exported.every[name].looked_up()
        assert kinds[1].count("MatMulInteger") == len(multiplied) > 0
        assert kinds[0].count("MatMul") + kinds[0].count("Gemm") == len(multiplied) + kinds[1].count("MatMul")
        assert "Gemm" not in kinds[1]
        floats = [key for key, tensor in tensors(after).items() if tensor.data_type == TensorProto.FLOAT]
        assert not weights & set(floats)
        assert all(len(tensors(after)[key].dims) < 2 for key in floats if not key.endswith(SCALE))
        onnx.checker.check_model(onnx.load(exported.int8_path(name)), full_check=True)


@KIND
def test_the_weights_are_those_of_the_rule(kind: str, exports: Callable[[str], Exported]) -> None:
    exported = exports(kind)
    for name, graph in exported.graphs.items():
        expected = weights_of_file(int8.INT8, graph)
        assert find_weights("int8", exported.int8_path(name), expected) == []
        assert sum(array.dtype == np.int8 for array in expected.values()) > 0
        limits = {key: int(abs(array.astype(int)).max()) for key, array in expected.items() if array.dtype == np.int8}
        tables = {key for key, limit in limits.items() if limit == LOOKUP_LIMIT}
        assert tables == {key for key in limits if "embedding" in key}
        assert {limits[key] for key in limits if key not in tables} == {LIMIT}


def test_a_step_has_one_product_of_integers_for_query_key_and_value(translation: Exported) -> None:
    graph = onnx.load(translation.int8_path("step")).graph
    fused = [node for node in graph.node if node.op_type == "Concat" and "q_proj.weight" in node.input[0]]
    assert [list(node.input) for node in fused if not node.input[0].endswith(SCALE)] == [
        [f"my_transformer.decoder.layers.{layer}.self_attn.{part}_proj.weight" for part in "qkv"] for layer in (0, 1)
    ]
    # For each layer: query, key and value; out; query; out; two of the feed-forward block. And the projection.
    assert sum(node.op_type == "MatMulInteger" for node in graph.node) == 2 * 6 + 1
    scaled = [node for node in graph.node if node.op_type == "Mul" and node.input[0].endswith("q_proj.weight" + SCALE)]
    assert len(scaled) == 4  # the scale of the softmax is part of the scales, and not of the integers


@pytest.mark.parametrize("name", ["greedy", "generate"])
def test_the_weights_of_a_loop_are_integers_of_its_own(name: str, exports: Callable[[str], Exported]) -> None:
    graph = onnx.load(exports("lively").int8_path(name)).graph
    own = {tensor.name: tensor.data_type for tensor in body_of(graph, "steps").initializer}
    layer = "my_transformer.decoder.layers.0"
    for part in ("linear1", "linear2", "self_attn.q_proj", "self_attn.out_proj", "multihead_attn.q_proj"):
        assert own[f"{layer}.{part}.weight"] == TensorProto.INT8
        assert own[f"{layer}.{part}.weight{SCALE}"] == TensorProto.FLOAT
    assert not any("linear" in tensor.name for tensor in graph.initializer if "decoder" in tensor.name)


@pytest.mark.parametrize("opset", [23, 25])
def test_other_opsets(opset: int, tmp_path: Path) -> None:
    model = build("couplet")
    graph = graphs_of(model)["decoder"]
    with quiet():
        save(to_onnx(graph, opset), tmp_path / "decoder.onnx")
    int8.export({"decoder": graph}, "decoder", tmp_path, ExportOptions(opset=opset))
    path = tmp_path / "decoder.int8.onnx"
    assert onnx.load(path).opset_import[0].version == opset
    assert find_weights("int8", path, weights_of_file(int8.INT8, graph)) == []
    assert list(OnnxRuntime.open(path).describe().inputs) == [spec.name for spec in graph.contract.inputs]


def test_the_same_bytes_each_time(translation: Exported, tmp_path: Path) -> None:
    shutil.copy(translation.path("step"), tmp_path)
    int8.export(translation.every, "step", tmp_path, ExportOptions(producer="0.0.0"))
    assert (tmp_path / "step.int8.onnx").read_bytes() == translation.int8_path("step").read_bytes()
    assert int8.needs(translation.every, "full") == ()


# --- shared weights --------------------------------------------------------------------------------------------------


def test_shared_weights_stand_once_outside_of_the_loops(exports: Callable[[str], Exported], tmp_path: Path) -> None:
    lively = exports("lively")
    graphs = {name: lively.every[name] for name in ("greedy", "generate")}
    write_shared(tmp_path, graphs, ["onnx", "int8"])
    for name, graph in graphs.items():
        save(lively.finished(name), tmp_path / f"{name}.onnx")
        int8.export(graphs, name, tmp_path, ExportOptions())
        loaded = onnx.load(tmp_path / f"{name}.int8.onnx", load_external_data=False).graph
        outer = [tensor for tensor in loaded.initializer if tensor.data_location == TensorProto.EXTERNAL]
        inner = [tensor for part in inner_graphs(loaded) for tensor in part.initializer]
        assert {item.value for tensor in outer for item in tensor.external_data if item.key == "location"} == {
            "weights.int8.bin"
        }
        assert not [tensor for tensor in inner if tensor.data_location == TensorProto.EXTERNAL]
        expected = weights_of_file(int8.INT8, graph)
        large = {key for key, array in expected.items() if array.nbytes >= SMALLEST}
        assert large == {tensor.name for tensor in outer}
        assert find_weights("int8", tmp_path / f"{name}.int8.onnx", expected) == []
        one = next(tensor for tensor in outer if tensor.data_type == TensorProto.INT8)
        assert read_values(one, tmp_path / "x").dtype == np.int8
        src = np.array([[3, 4, 5]])
        given = {"src": src, "src_key_padding_mask": src == 0, "max_length": np.array(5), "min_length": np.array(2)}
        given |= {"length_penalty": np.array(1, np.float32)}
        if name == "generate":
            given |= {"num_beams": np.array(2), "num_hypotheses": np.array(1)}
        alone = OnnxRuntime.open(lively.int8_path(name)).run(given)
        assert {key: array.tolist() for key, array in alone.items()} == {
            key: array.tolist() for key, array in OnnxRuntime.open(tmp_path / f"{name}.int8.onnx").run(given).items()
        }


def test_a_table_that_is_also_multiplied_by_has_integers_that_do_not_saturate(tmp_path: Path) -> None:
    model = CoupletModel(13, 16, 2, 1, 1, 24, max_length=40).eval()
    model.classification.weight = model.token_embedding.embedding.weight
    graph = graphs_of(model)["decoder"]
    assert graph.looked_up() & set(graph.weights()) >= {"pos_embedding.pe"}
    assert not {name for name in graph.looked_up() if "token_embedding" in name}
    weights = weights_of_file(int8.INT8, graph)
    assert abs(weights["token_embedding.embedding.weight"].astype(int)).max() == LIMIT
    with quiet():
        save(to_onnx(graph), tmp_path / "decoder.onnx")
    int8.export({"decoder": graph}, "decoder", tmp_path, ExportOptions())
    assert find_weights("int8", tmp_path / "decoder.int8.onnx", weights) == []


# --- what is not a plain product -------------------------------------------------------------------------------------

MATRIX = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


def small(node: NodeProto, shape: list[int | str], tmp_path: Path) -> OnnxReference:
    """``node`` with a matrix ``w [4, 3]``, in integers, in float64."""
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(MATRIX, "w")],
    )
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    int8.to_integers(model, {"w"})
    path = tmp_path / "small.onnx"
    onnx.save(ir.to_proto(model), path)
    return OnnxReference.open(path, lifted=True)


@pytest.mark.parametrize(
    ("node", "shape", "right"),
    [
        (helper.make_node("Gemm", ["x", "w"], ["y"], "n", transB=1), [2, 3], lambda x, w: x @ w.T),
        (helper.make_node("Gemm", ["x", "w"], ["y"], "n", transB=1, alpha=2.0), [2, 3], lambda x, w: 2 * x @ w.T),
        (helper.make_node("Gemm", ["x", "w"], ["y"], "n", transA=1), [4, 2], lambda x, w: x.T @ w),
        (helper.make_node("Gemm", ["x", "w"], ["y"], "n"), [2, 4], lambda x, w: x @ w),
        (helper.make_node("MatMul", ["x", "w"], ["y"], "n"), [5, 2, 4], lambda x, w: x @ w),
        (helper.make_node("MatMul", ["w", "x"], ["y"], "n"), [3, 2], lambda x, w: w @ x),
        (helper.make_node("Add", ["x", "w"], ["y"], "n"), [4, 3], lambda x, w: x + w),
    ],
    ids=["plain", "times alpha", "turned left", "columns", "columns of many", "on the left", "no product"],
)
def test_a_matrix_that_is_read_in_another_way_is_computed_of_its_integers(
    node: NodeProto, shape: list[int | str], right: Callable[[np.ndarray, np.ndarray], np.ndarray], tmp_path: Path
) -> None:
    runtime = small(node, shape, tmp_path)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    found = runtime.run({"x": x})["y"]
    expected = right(x.astype(np.float64), quantise("w", MATRIX).floats().astype(np.float64))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    plain = node.op_type == "Gemm" and [item.name for item in node.attribute] == ["transB"]
    assert ("MatMulInteger" in {item.op_type for item in runtime.graph.node}) == plain
    assert {"w", "w" + SCALE} <= set(runtime.weights)


def test_the_weights_of_a_file_are_quantised_as_a_whole(translation: Exported) -> None:
    graph = translation.every["decoder"]
    arrays = {name: tensor.numpy() for name, tensor in graph.weights().items()}
    assert set(weights_of_file(int8.INT8, graph)) == set(quantised_weights(arrays, graph.looked_up()))
