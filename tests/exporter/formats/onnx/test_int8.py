"""Files in int8: every product with a matrix is of integers, also in loops, and the weights stand once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import GraphProto, NodeProto, TensorProto

from exported_models import KINDS, Exported, build
from mytx.exporter.formats.onnx import int8
from mytx.exporter.formats.onnx.export import save, to_onnx
from mytx.exporter.formats.quantisation import LIMIT, LOOKUP_LIMIT, SCALE
from mytx.exporter.formats.table import FORMATS, ExportOptions
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.parity.prove import weights_of_file
from mytx.exporter.parity.weights import find_weights
from mytx.exporter.quiet import quiet
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime
from mytx.models import CoupletModel
from planting import all_graphs
from planting_loops import body_of

INT8 = FORMATS["int8"]
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
        before, after = (onnx.load(path).graph for path in (exported.path(name), exported.quantised(name)))
        kinds = [[node.op_type for node in nodes(graph)] for graph in (before, after)]
        weights = {key for key, tensor in exported.every[name].weights().items() if tensor.dim() > 1}
        multiplied = weights - exported.every[name].looked_up()
        assert kinds[1].count("MatMulInteger") == len(multiplied) > 0
        assert kinds[0].count("MatMul") + kinds[0].count("Gemm") == len(multiplied) + kinds[1].count("MatMul")
        assert "Gemm" not in kinds[1]
        floats = [key for key, tensor in tensors(after).items() if tensor.data_type == TensorProto.FLOAT]
        assert not weights & set(floats)
        assert all(len(tensors(after)[key].dims) < 2 for key in floats if not key.endswith(SCALE))
        onnx.checker.check_model(onnx.load(exported.quantised(name)), full_check=True)


@KIND
def test_the_weights_are_those_of_the_rule(kind: str, exports: Callable[[str], Exported]) -> None:
    exported = exports(kind)
    for name, graph in exported.graphs.items():
        expected = weights_of_file(INT8, graph)
        assert find_weights("int8", exported.quantised(name), expected) == []
        assert sum(array.dtype == np.int8 for array in expected.values()) > 0
        limits = {key: int(abs(array.astype(int)).max()) for key, array in expected.items() if array.dtype == np.int8}
        tables = {key for key, limit in limits.items() if limit == LOOKUP_LIMIT}
        assert tables == {key for key in limits if "embedding" in key}
        assert {limits[key] for key in limits if key not in tables} == {LIMIT}


def test_a_step_has_one_product_of_integers_for_query_key_and_value(translation: Exported) -> None:
    graph = onnx.load(translation.quantised("step")).graph
    fused = [node for node in graph.node if node.op_type == "Concat" and "k_proj.weight" in "".join(node.input[1:2])]
    # The query's are first divided by the square root of the head's width.
    assert [list(node.input[1:]) for node in fused if not node.input[1].endswith(SCALE)] == [
        [f"my_transformer.decoder.layers.{layer}.self_attn.{part}_proj.weight" for part in "kv"] for layer in (0, 1)
    ]
    # For each layer: query, key and value; out; query; out; two of the feed-forward block. And the projection.
    assert sum(node.op_type == "MatMulInteger" for node in graph.node) == 2 * 6 + 1
    scaled = [node for node in graph.node if node.op_type == "Mul" and node.input[0].endswith("q_proj.weight" + SCALE)]
    assert len(scaled) == 4  # the scale of the softmax is part of the scales, and not of the integers


@pytest.mark.parametrize("name", ["greedy", "generate"])
def test_the_weights_of_a_loop_are_integers_of_its_own(name: str, exports: Callable[[str], Exported]) -> None:
    graph = onnx.load(exports("lively").quantised(name)).graph
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
    assert find_weights("int8", path, weights_of_file(INT8, graph)) == []
    assert list(OnnxRuntime.open(path).describe().inputs) == [spec.name for spec in graph.contract.inputs]


def test_the_same_bytes_each_time(translation: Exported, tmp_path: Path) -> None:
    shutil.copy(translation.path("step"), tmp_path)
    int8.export(translation.every, "step", tmp_path, ExportOptions(producer="0.0.0"))
    assert (tmp_path / "step.int8.onnx").read_bytes() == translation.quantised("step").read_bytes()
    assert int8.needs(translation.every, "full") == ()


def test_a_table_that_is_also_multiplied_by_has_integers_that_do_not_saturate(tmp_path: Path) -> None:
    model = CoupletModel(13, 16, 2, 1, 1, 24, max_length=40).eval()
    model.classification.weight = model.token_embedding.embedding.weight
    graph = graphs_of(model)["decoder"]
    assert graph.looked_up() & set(graph.weights()) >= {"pos_embedding.pe"}
    assert not {name for name in graph.looked_up() if "token_embedding" in name}
    weights = weights_of_file(INT8, graph)
    assert abs(weights["token_embedding.embedding.weight"].astype(int)).max() == LIMIT
    with quiet():
        save(to_onnx(graph), tmp_path / "decoder.onnx")
    int8.export({"decoder": graph}, "decoder", tmp_path, ExportOptions())
    assert find_weights("int8", tmp_path / "decoder.int8.onnx", weights) == []
