"""Files in int4: every product with a matrix of enough columns has 4-bit weights, also in loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import GraphProto, NodeProto, TensorProto

from exported_models import KINDS, Exported, build
from mytx.exporter.formats.onnx import int4
from mytx.exporter.formats.onnx.export import save, to_onnx
from mytx.exporter.formats.quantisation import BLOCK, RULES, SCALE
from mytx.exporter.formats.table import FORMATS, ExportOptions
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.parity.prove import weights_of_file
from mytx.exporter.parity.weights import find_weights
from mytx.exporter.quiet import quiet
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime
from mytx.models import CoupletModel
from planting import all_graphs
from planting_loops import body_of

INT4 = FORMATS["int4"]


def nodes(graph: GraphProto) -> list[NodeProto]:
    return [node for part in all_graphs(graph) for node in part.node]


@pytest.mark.parametrize("kind", KINDS)
def test_every_product_with_a_weight_has_4_bits(kind: str, exports: Callable[[str], Exported]) -> None:
    exported = exports(kind)
    for name, graph in exported.graphs.items():
        before, after = (onnx.load(path) for path in (exported.path(name), exported.quantised(name, "int4")))
        assert {entry.domain: entry.version for entry in after.opset_import} == {"": 18, "com.microsoft": 1}
        kinds = [Counter(node.op_type for node in nodes(model.graph)) for model in (before, after)]
        weights = {key for key, tensor in graph.weights().items() if RULES["int4"].fits(tensor.shape)}
        multiplied = weights - graph.looked_up()
        assert kinds[1]["MatMulNBits"] == len(multiplied) > 0
        assert kinds[0]["MatMul"] + kinds[0]["Gemm"] == len(multiplied) + kinds[1]["MatMul"] + kinds[1]["Gemm"]
        stored = {tensor.name: tensor for part in all_graphs(after.graph) for tensor in part.initializer}
        assert {stored[key].data_type for key in weights} == {TensorProto.UINT8}
        products = [node for node in nodes(after.graph) if node.op_type == "MatMulNBits"]
        for product in products:
            numbers = {item.name: item.i for item in product.attribute}
            assert (numbers["bits"], numbers["block_size"], numbers["accuracy_level"]) == (4, BLOCK, 4)
            assert product.domain == "com.microsoft"
        assert find_weights("int4", exported.quantised(name, "int4"), weights_of_file(INT4, graph)) == []


@pytest.mark.parametrize("name", ["greedy", "generate"])
def test_the_weights_of_a_loop_are_integers_of_its_own(name: str, exports: Callable[[str], Exported]) -> None:
    """As those from outside of it, onnxruntime does not pack them, and takes 25 times as long."""
    graph = onnx.load(exports("lively").quantised(name, "int4")).graph
    own = {tensor.name: tensor.data_type for tensor in body_of(graph, "steps").initializer}
    layer = "my_transformer.decoder.layers.0"
    for part in ("linear1", "linear2", "self_attn.q_proj", "self_attn.out_proj", "multihead_attn.q_proj"):
        assert own[f"{layer}.{part}.weight"] == TensorProto.UINT8
        assert own[f"{layer}.{part}.weight{SCALE}"] == TensorProto.FLOAT
    assert not any("linear" in tensor.name for tensor in graph.initializer if "decoder" in tensor.name)


@pytest.mark.parametrize("opset", [23, 25])
def test_other_opsets(opset: int, tmp_path: Path) -> None:
    graph = graphs_of(build("couplet"))["decoder"]
    with quiet():
        save(to_onnx(graph, opset), tmp_path / "decoder.onnx")
    int4.export({"decoder": graph}, "decoder", tmp_path, ExportOptions(opset=opset))
    path = tmp_path / "decoder.int4.onnx"
    assert onnx.load(path).opset_import[0].version == opset
    assert list(OnnxRuntime.open(path).describe().inputs) == [spec.name for spec in graph.contract.inputs]


def test_a_table_that_is_also_multiplied_by_stands_once(tmp_path: Path) -> None:
    model = CoupletModel(13, 48, 2, 1, 1, 24, max_length=40).eval()
    model.classification.weight = model.token_embedding.embedding.weight
    graph = graphs_of(model)["decoder"]
    with quiet():
        save(to_onnx(graph), tmp_path / "decoder.onnx")
    int4.export({"decoder": graph}, "decoder", tmp_path, ExportOptions())
    path = tmp_path / "decoder.int4.onnx"
    assert find_weights("int4", path, weights_of_file(INT4, graph)) == []
    # Rows of 48 end in half a block, which is filled up.
    assert weights_of_file(INT4, graph)["classification.weight"].shape == (13, 2, BLOCK // 2)
    inputs = {
        "tgt": np.array([[1, 5, 7]]),
        "memory": np.ones((1, 4, 48), np.float32),
        "tgt_key_padding_mask": np.zeros((1, 3), bool),
        "memory_key_padding_mask": np.zeros((1, 4), bool),
    }
    found = OnnxRuntime.open(path).run(inputs)["logits"]
    with torch.inference_mode():
        (right,) = graph.compute({name: torch.from_numpy(array) for name, array in inputs.items()})
    # Nearly those of the model, and not exactly: 4 bits change every weight.
    assert 1e-6 < np.abs(found - right.numpy()).max() < 0.3 * float(right.abs().max())


def test_a_model_too_small_for_blocks_stays_in_float32(tmp_path: Path) -> None:
    graph = graphs_of(CoupletModel(13, 8, 2, 1, 1, 12, max_length=40).eval())["decoder"]
    with quiet():
        save(to_onnx(graph), tmp_path / "decoder.onnx")
    int4.export({"decoder": graph}, "decoder", tmp_path, ExportOptions())
    after = onnx.load(tmp_path / "decoder.int4.onnx").graph
    assert "MatMulNBits" not in {node.op_type for node in nodes(after)}
    assert not any(key.endswith(SCALE) for key in weights_of_file(INT4, graph))
