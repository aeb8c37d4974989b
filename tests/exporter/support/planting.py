"""Faults to plant in an ONNX file, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from mytx.exporter.parity.report import GraphReport

Fault = Callable[[GraphProto], None]


def all_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """``graph`` and those inside its nodes."""
    yield graph
    for found in graph.node:
        for attribute in found.attribute:
            if attribute.HasField("g"):
                yield from all_graphs(attribute.g)


def weight(graph: GraphProto, name: str) -> TensorProto:
    return next(tensor for part in all_graphs(graph) for tensor in part.initializer if tensor.name.endswith(name))


def change(graph: GraphProto, name: str, function: Callable[[np.ndarray], np.ndarray]) -> None:
    """Put ``function`` of a weight in its place."""
    tensor = weight(graph, name)
    tensor.CopyFrom(numpy_helper.from_array(function(numpy_helper.to_array(tensor).copy()), tensor.name))


def node(graph: GraphProto, op_type: str, part: str = "", **attributes: object) -> NodeProto:
    """The first node of a type whose name holds ``part``, with those attributes."""
    return next(
        found
        for found in graph.node
        if found.op_type == op_type
        and part in found.name
        and attributes.items() <= {item.name: helper.get_attribute_value(item) for item in found.attribute}.items()
    )


def reads(graph: GraphProto, name: str) -> list[NodeProto]:
    return [found for found in graph.node if name in found.input]


def rewire(graph: GraphProto, old: str, new: str, besides: str = "") -> None:
    """Let everything that reads ``old`` read ``new``, except the node that makes ``besides``."""
    for found in graph.node:
        for index, name in enumerate(found.input):
            if name == old and found.output[0] != besides:
                found.input[index] = new


def bypass(graph: GraphProto, found: NodeProto, kept: int = 0) -> None:
    """Take a node out: its input of that number goes where its output went."""
    rewire(graph, found.output[0], found.input[kept])
    graph.node.remove(found)


def constant(graph: GraphProto, value: np.ndarray, name: str = "planted") -> str:
    graph.initializer.append(numpy_helper.from_array(value, name))
    return name


def insert(
    graph: GraphProto, before: NodeProto, op_type: str, inputs: list[str], output: str, **attributes: object
) -> str:
    """A new node in front of another; returns its output."""
    graph.node.insert(
        list(graph.node).index(before), helper.make_node(op_type, inputs, [output], f"planted/{output}", **attributes)
    )
    return output


def set_attribute(found: NodeProto, name: str, value: object) -> None:
    for attribute in list(found.attribute):
        if attribute.name == name:
            found.attribute.remove(attribute)
    found.attribute.append(helper.make_attribute(name, value))


def set_constant(graph: GraphProto, name: str, value: np.ndarray) -> None:
    """Give a small constant another value, be it an initializer or a Constant node."""
    for tensor in graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(value, name))
            return
    found = next(found for found in graph.node if found.op_type == "Constant" and found.output[0] == name)
    del found.attribute[:]
    found.attribute.append(helper.make_attribute("value", numpy_helper.from_array(value)))


def get_constant(graph: GraphProto, name: str) -> np.ndarray:
    for tensor in graph.initializer:
        if tensor.name == name:
            return numpy_helper.to_array(tensor)
    found = next(found for found in graph.node if found.op_type == "Constant" and found.output[0] == name)
    value = helper.get_attribute_value(found.attribute[0])
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.array(value)


# --- faults that several tests plant ---------------------------------------------------------------------------------


def mask_input_ignored(name: str) -> Fault:
    """The input is there, and only its shape is read."""

    def fault(graph: GraphProto) -> None:
        first = reads(graph, name)[0]
        shape = insert(graph, first, "Shape", [name], "shape")
        false = numpy_helper.from_array(np.array([False]))
        rewire(graph, name, insert(graph, first, "ConstantOfShape", [shape], "nothing", value=false), besides=shape)

    return fault


def mask_polarity_turned(name: str) -> Fault:
    """What was padding is real, and the other way round."""

    def fault(graph: GraphProto) -> None:
        negated = insert(graph, reads(graph, name)[0], "Not", [name], "negated")
        rewire(graph, name, negated, besides=negated)

    return fault


# --- what must be found ----------------------------------------------------------------------------------------------


def checks(report: GraphReport) -> set[str]:
    return {finding.check for finding in report.findings}
