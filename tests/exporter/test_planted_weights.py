"""Weights that are not the model's, planted one at a time in an honest file: the check of weights must find them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import planting
import pytest
from exported_models import Exported
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper
from planting import (
    Fault,
    assert_found,
    bypass,
    change,
    checks,
    constant,
    insert,
    node,
    reads,
    rewire,
    weight,
)

SELF = "decoder.layers.0.self_attn"
CROSS = "decoder.layers.1.multihead_attn"


def one_value_off(graph: GraphProto) -> None:
    def move(values: np.ndarray) -> np.ndarray:
        values[3, 5] *= np.float32(1 + 1e-6)
        return values

    change(graph, f"{SELF}.v_proj.weight", move)


def one_bit_off(graph: GraphProto) -> None:
    def move(values: np.ndarray) -> np.ndarray:
        values.view(np.int32)[7, 2] ^= 1
        return values

    change(graph, "classification.weight", move)


def key_bias_changed(graph: GraphProto) -> None:
    """It cancels in the softmax: no rule on outputs can see it."""
    change(graph, f"{CROSS}.k_proj.bias", lambda values: values + np.float32(0.25))


def weights_swapped(graph: GraphProto) -> None:
    first, second = weight(graph, f"{SELF}.q_proj.weight"), weight(graph, f"{SELF}.k_proj.weight")
    first.raw_data, second.raw_data = second.raw_data, first.raw_data


def layers_swapped(graph: GraphProto) -> None:
    first, second = weight(graph, "layers.0.norm3.weight"), weight(graph, "layers.1.norm3.weight")
    first.raw_data, second.raw_data = second.raw_data, first.raw_data


def renamed(graph: GraphProto) -> None:
    tensor = weight(graph, f"{SELF}.q_proj.weight")
    rewire(graph, tensor.name, "val_13")
    tensor.name = "val_13"


def rounded_to_float16(graph: GraphProto) -> None:
    change(graph, "linear1.weight", lambda values: values.astype(np.float16).astype(np.float32))


def kept_as_float64(graph: GraphProto) -> None:
    """Exact, but not bit for bit what was declared."""
    tensor = weight(graph, "layers.0.linear1.weight")
    cast = insert(graph, reads(graph, tensor.name)[0], "Cast", [tensor.name], "cast", to=TensorProto.FLOAT)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for found in reads(graph, tensor.name):
        if found.op_type != "Cast":
            found.input[0] = cast


def transposed_in_the_file(graph: GraphProto) -> None:
    """The same function, by a transform that nobody declared."""
    tensor = weight(graph, "layers.0.linear1.weight")
    (transpose,) = reads(graph, tensor.name)
    change(graph, tensor.name, lambda values: np.ascontiguousarray(values.T))
    bypass(graph, transpose)


def disconnected(graph: GraphProto) -> None:
    """The file has the right weight, and computes with another."""
    tensor = weight(graph, "layers.0.linear1.weight")
    rewire(graph, tensor.name, constant(graph, numpy_helper.to_array(tensor)))


def disconnected_and_read_by_a_dead_node(graph: GraphProto) -> None:
    """A bias of 16 values, replaced by a constant that is too small to be taken for a weight."""
    tensor = weight(graph, f"{SELF}.k_proj.bias")
    rewire(graph, tensor.name, constant(graph, np.zeros(16, np.float32)))
    insert(graph, graph.node[0], "Identity", [tensor.name], "nobody")


def bias_not_added(graph: GraphProto) -> None:
    bypass(graph, node(graph, "Add", f"{SELF}.k_proj/"))


def extra_initializer(graph: GraphProto) -> None:
    constant(graph, np.zeros((9, 9), np.float32))


def extra_constant(graph: GraphProto) -> None:
    value = numpy_helper.from_array(np.ones((16, 16), np.float32))
    insert(graph, graph.node[0], "Constant", [], "planted", value=value)


def extra_list_of_floats(graph: GraphProto) -> None:
    insert(graph, graph.node[0], "Constant", [], "planted", value_floats=[0.5] * 17)


def extra_sparse_initializer(graph: GraphProto) -> None:
    values = numpy_helper.from_array(np.ones(20, np.float32), "planted")
    graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, numpy_helper.from_array(np.arange(20), "indices"), [400])
    )


def extra_weight_in_a_branch(graph: GraphProto) -> None:
    inner = numpy_helper.from_array(np.ones((16, 16), np.float32), "planted")
    output = helper.make_tensor_value_info("chosen", TensorProto.FLOAT, [16, 16])
    branch = helper.make_graph([helper.make_node("Identity", ["planted"], ["chosen"])], "branch", [], [output], [inner])
    condition = constant(graph, np.array(True), "condition")
    insert(graph, graph.node[0], "If", [condition], "unused", then_branch=branch, else_branch=branch)


@pytest.mark.parametrize(
    ("fault", "expected", "words"),
    [
        (one_value_off, {"weights"}, "v_proj.weight differs from the model in 1 of 256 values"),
        (one_bit_off, {"weights"}, "classification.weight differs from the model in 1 of 208 values"),
        (key_bias_changed, {"weights"}, "k_proj.bias differs from the model in 16 of 16 values"),
        (weights_swapped, {"weights", "rounding"}, "k_proj.weight differs"),
        (layers_swapped, {"weights", "rounding"}, "norm3.weight differs"),
        (renamed, {"weights"}, "val_13 is in the file, but the model has no such weight"),
        (rounded_to_float16, {"weights", "rounding"}, "linear1.weight differs"),
        (kept_as_float64, {"weights"}, "linear1.weight is float64 in the file, float32 in the model"),
        (transposed_in_the_file, {"weights"}, "linear1.weight is [16, 24] in the file, [24, 16] in the model"),
        (disconnected, {"weights"}, "linear1.weight is in the file, but no output depends on it"),
        (disconnected_and_read_by_a_dead_node, {"weights"}, "k_proj.bias is in the file, but no output depends on it"),
        (bias_not_added, {"weights"}, "k_proj.bias is in the file, but no output depends on it"),
        (extra_initializer, {"weights"}, "planted is in the file, but the model has no such weight"),
        (extra_constant, {"weights"}, "holds a constant of the size of a weight"),
        (extra_list_of_floats, {"weights"}, "holds a constant of the size of a weight"),
        (extra_weight_in_a_branch, {"weights"}, "planted is in the file, but the model has no such weight"),
    ],
)
def test_a_weight_that_is_not_the_models_is_found(
    fault: Fault, expected: set[str], words: str, translation: Exported, tmp_path: Path
) -> None:
    reports = planting.verify_with(lambda model: fault(model.graph), translation, "decoder", tmp_path)
    assert_found(reports, expected, words)


def test_a_sparse_weight_that_is_not_the_models_is_found(translation: Exported, tmp_path: Path) -> None:
    reports = planting.verify_with(
        lambda model: extra_sparse_initializer(model.graph), translation, "decoder", tmp_path
    )
    assert all("weights" in checks(report) for report in reports)  # onnxruntime may or may not load it


def test_a_wrong_table_of_positions_is_found(translation: Exported, tmp_path: Path) -> None:
    """Only in the rows that no case reaches: the lengths of the plan end before the table does."""

    def fault(model: ModelProto) -> None:
        def move(values: np.ndarray) -> np.ndarray:
            values[63] += 1
            return values

        change(model.graph, "pos_embedding.pe", move)

    assert_found(planting.verify_with(fault, translation, "encoder", tmp_path), {"weights"}, "pos_embedding.pe differs")
