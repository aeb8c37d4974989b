"""Weights that are stored in another way than was declared, or that the model does not have."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, TensorProto, helper, numpy_helper

from fault import found_by
from fault_weights import FOREIGN, LAYER, SELF, UNREAD, WEIGHTS, row
from planting import bypass, change, constant, insert, node, reads, rewire, weight
from subject import in_graph


def renamed(graph: GraphProto) -> None:
    tensor = weight(graph, f"{SELF}.q_proj.weight")
    rewire(graph, tensor.name, "val_13")
    tensor.name = "val_13"


def kept_as_float64(graph: GraphProto) -> None:
    """Exact, but not bit for bit what was declared."""
    tensor = weight(graph, f"{LAYER}.linear1.weight")
    cast = insert(graph, reads(graph, tensor.name)[0], "Cast", [tensor.name], "cast", to=TensorProto.FLOAT)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for found in reads(graph, tensor.name):
        if found.op_type != "Cast":
            found.input[0] = cast


def transposed_in_the_file(graph: GraphProto) -> None:
    """The same function, by a transform that nobody declared."""
    tensor = weight(graph, f"{LAYER}.linear1.weight")
    (transpose,) = reads(graph, tensor.name)
    change(graph, tensor.name, lambda values: np.ascontiguousarray(values.T))
    bypass(graph, transpose)


def scale_folded(graph: GraphProto) -> None:
    """The scale of the query goes into its projection: faster, nearly the same, and undeclared."""
    mul = node(graph, "Mul", f"{SELF}/")
    scale = np.float32(2**-0.5)
    for name in ("weight", "bias"):
        change(graph, f"{SELF}.q_proj.{name}", lambda values: values * scale)
    bypass(graph, mul)


def disconnected(graph: GraphProto) -> None:
    """The file has the right weight, and computes with another."""
    tensor = weight(graph, f"{LAYER}.linear1.weight")
    rewire(graph, tensor.name, constant(graph, numpy_helper.to_array(tensor)))


def disconnected_and_read_by_a_dead_node(graph: GraphProto) -> None:
    """A bias of 16 values, replaced by a constant that is too small to be taken for a weight."""
    tensor = weight(graph, f"{SELF}.k_proj.bias")
    rewire(graph, tensor.name, constant(graph, np.zeros(16, np.float32)))
    insert(graph, graph.node[0], "Identity", [tensor.name], "nobody")


def extra_constant(graph: GraphProto) -> None:
    value = numpy_helper.from_array(np.ones((16, 16), np.float32))
    insert(graph, graph.node[0], "Constant", [], "planted", value=value)


def extra_list_of_floats(graph: GraphProto) -> None:
    insert(graph, graph.node[0], "Constant", [], "planted", value_floats=[0.5] * 17)


def extra_sparse_initializer(graph: GraphProto) -> None:
    values = numpy_helper.from_array(np.ones(20, np.float32), "planted")
    indices = numpy_helper.from_array(np.arange(20), "indices")
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [400]))


def extra_weight_in_a_branch(graph: GraphProto) -> None:
    inner = numpy_helper.from_array(np.ones((16, 16), np.float32), "planted")
    output = helper.make_tensor_value_info("chosen", TensorProto.FLOAT, [16, 16])
    branch = helper.make_graph([helper.make_node("Identity", ["planted"], ["chosen"])], "branch", [], [output], [inner])
    condition = constant(graph, np.array(True), "condition")
    insert(graph, graph.node[0], "If", [condition], "unused", then_branch=branch, else_branch=branch)


FAULTS = [
    row("a weight under another name", in_graph(renamed), WEIGHTS, f"val_13 {FOREIGN}", small=True),
    row(
        "a weight kept as float64",
        in_graph(kept_as_float64),
        WEIGHTS,
        "linear1.weight is float64 in the file, float32 in the model",
        small=True,
    ),
    row(
        "a weight transposed together with its use",
        in_graph(transposed_in_the_file),
        WEIGHTS,
        "linear1.weight is [16, 24] in the file, [24, 16] in the model",
        small=True,
    ),
    row(
        "the softmax scale folded into a weight",
        in_graph(scale_folded),
        WEIGHTS,
        "q_proj.weight differs",
        small=True,
    ),
    row("a copy of a weight in its place", in_graph(disconnected), WEIGHTS, f"linear1.weight {UNREAD}", small=True),
    row(
        "a bias replaced and read by a dead node",
        in_graph(disconnected_and_read_by_a_dead_node),
        WEIGHTS,
        f"k_proj.bias {UNREAD}",
        small=True,
    ),
    row(
        "a weight that the model does not have",
        in_graph(lambda graph: constant(graph, np.zeros((9, 9), np.float32)) and None),
        WEIGHTS,
        f"planted {FOREIGN}",
        small=True,
    ),
    row("a constant as large as a weight", in_graph(extra_constant), WEIGHTS, "of the size of a weight", small=True),
    row("a long list of floats", in_graph(extra_list_of_floats), WEIGHTS, "of the size of a weight", small=True),
    row("a weight in a branch", in_graph(extra_weight_in_a_branch), WEIGHTS, f"planted {FOREIGN}", small=True),
    row(
        "a sparse weight, which onnxruntime refuses",
        in_graph(extra_sparse_initializer),
        found_by("weights", "runtime", "rounding", "structure"),
        f"planted {FOREIGN}",
    ),
]
