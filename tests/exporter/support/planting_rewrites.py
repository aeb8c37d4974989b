"""Honest nodes that onnxruntime's own optimiser makes something else of: real faults of its rewrites, to be planted.

The file computes what it computed before. In onnxruntime 1.32.0 it does not once it is optimised.
"""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

from planting import constant


def subgraphs(graph: GraphProto) -> list[GraphProto]:
    """A graph, and those in its loops."""
    inner = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return [graph, *(found for one in inner for found in subgraphs(one))]


def norm_turned_round(main: GraphProto, part: str = "") -> str:
    """Write a layer norm out, as exporters did before opset 17, of its input with the sign changed twice.

    ``mean(-x) - (-x)`` is ``x - mean(x)``. LayerNormFusion takes a Sub for ``x - mean`` in whatever order its inputs
    stand, so it gives the norm of ``-x``. Returns the name of the node that it was.
    """
    graph, norm = next(
        (graph, node)
        for graph in subgraphs(main)
        for node in graph.node
        if node.op_type == "LayerNormalization" and part in node.name
    )
    x, weight, bias = norm.input
    epsilon = next(attribute.f for attribute in norm.attribute if attribute.name == "epsilon")
    own = len(main.initializer)
    axis = constant(main, np.array([-1]), f"axis_{own}")
    two = constant(main, np.array(2, np.float32), f"two_{own}")
    little = constant(main, np.array(epsilon, np.float32), f"little_{own}")
    scope = norm.name.rpartition("/")[0]
    nodes: list[NodeProto] = []

    def add(op_type: str, *inputs: str, **attributes: int) -> str:
        output = f"turned_{own}_{len(nodes)}"
        nodes.append(helper.make_node(op_type, inputs, [output], f"{scope}/{op_type}_{output}", **attributes))
        return output

    negative = add("Neg", x)
    centred = add("Sub", add("ReduceMean", negative, axis, keepdims=1), negative)
    variance = add("ReduceMean", add("Pow", centred, two), axis, keepdims=1)
    scaled = add("Mul", add("Div", centred, add("Sqrt", add("Add", variance, little))), weight)
    add("Add", scaled, bias)
    nodes[-1].output[0] = norm.output[0]
    at = list(graph.node).index(norm)
    name = norm.name
    graph.node.remove(norm)
    for node in reversed(nodes):
        graph.node.insert(at, node)
    return name


def times_one(graph: GraphProto, value: str) -> None:
    """Multiply what the first reader of ``value`` reads by one, which is one by one.

    Two small rules together leave the file invalid, so that it cannot be loaded any more: DivMulFusion moves a value
    without telling EliminateIdentity, which then takes it away (onnxruntime's issue 32413).
    """
    reader = next(node for node in graph.node if value in node.input)
    at = list(graph.node).index(reader)
    one = constant(graph, np.array(1, np.float32), "planted_one")
    made = [("Identity", [value]), ("Div", [one, one]), ("Mul", ["times_one_0", "times_one_1"])]
    for number, (op_type, inputs) in enumerate(made):
        node = helper.make_node(op_type, inputs, [f"times_one_{number}"], f"planted/{op_type}_{number}")
        graph.node.insert(at + number, node)
    reader.input[list(reader.input).index(value)] = "times_one_2"


def exponent_of_norm(graph: GraphProto, exponent: float) -> None:
    """Give the first norm that is written out another exponent than two, which LayerNormFusion does not look at."""
    power = next(node for node in graph.node if node.op_type == "Pow")
    name = power.input[1]
    next(tensor for tensor in graph.initializer if tensor.name == name).CopyFrom(
        numpy_helper.from_array(np.array(exponent, np.float32), name)
    )
