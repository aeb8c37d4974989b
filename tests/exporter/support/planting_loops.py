"""Faults to plant in a search: around it, and between the rounds of its loops.

A search is two loops, ``steps`` inside ``phases``; what they carry from round to round has names: ``phases/alive``,
``steps/past_0``. So these need not know what a round does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

from planting import all_graphs, constant, insert, reads, rewire

Edit = Callable[[GraphProto], None]
Make = Callable[[Callable[..., str], str], str]  # adds an operator; of a value's name that of another value


def all_readers(graph: GraphProto, name: str) -> list[tuple[GraphProto, NodeProto]]:
    return [(part, found) for part in all_graphs(graph) for found in reads(part, name)]


def rewire_everywhere(graph: GraphProto, old: str, new: str, besides: str = "") -> None:
    for part in all_graphs(graph):
        rewire(part, old, new, besides)


def body_of(graph: GraphProto, loop: str) -> GraphProto:
    """The graph that a loop runs in each round."""
    return next(part for part in all_graphs(graph) if any(value.name.startswith(f"{loop}/") for value in part.input))


def loop_node(graph: GraphProto, loop: str) -> NodeProto:
    body = body_of(graph, loop)
    return next(
        found
        for part in all_graphs(graph)
        for found in part.node
        for attribute in found.attribute
        if found.op_type == "Loop" and attribute.g == body
    )


def place(graph: GraphProto, loop: str, state: str) -> int:
    """The number of what a loop carries, among its body's inputs; among the outputs it is one less."""
    return [value.name for value in body_of(graph, loop).input].index(f"{loop}/{state}")


# --- what a value becomes --------------------------------------------------------------------------------------------


def turned(axis: int) -> Make:
    """In reverse along an axis."""

    def make(op: Callable[..., str], value: str) -> str:
        ends = (np.array([number], np.int64) for number in (-1, np.iinfo(np.int64).min, axis, -1))
        return op("Slice", value, *ends)

    return make


def through(op_type: str, number: np.ndarray) -> Make:
    """With a number as the second operand."""
    return lambda op, value: op(op_type, value, number)


def number(value: int) -> np.ndarray:
    return np.array(value, np.int64)


# --- where -----------------------------------------------------------------------------------------------------------


def _adder(nodes: list[NodeProto], prefix: str) -> Callable[..., str]:
    def op(op_type: str, *inputs: str | np.ndarray) -> str:
        names = []
        for given in inputs:
            if isinstance(given, np.ndarray):
                name = f"planted/{prefix}/constant_{len(nodes)}"
                value = numpy_helper.from_array(given, name)
                nodes.append(helper.make_node("Constant", [], [name], name, value=value))
                given = name
            names.append(given)
        output = f"planted/{prefix}/{op_type}_{len(nodes)}"
        nodes.append(helper.make_node(op_type, names, [output], output))
        return output

    return op


def after_each_round(loop: str, state: str, make: Make) -> Edit:
    """What a loop carries is changed at the end of each round."""

    def fault(graph: GraphProto) -> None:
        body, index = body_of(graph, loop), place(graph, loop, state) - 1
        nodes: list[NodeProto] = []
        changed = make(_adder(nodes, state), body.output[index].name)
        body.node.extend(nodes)
        body.output[index].name = changed

    return fault


def before_the_loop(loop: str, make: Make, *states: str) -> Edit:
    """What a loop starts with is changed."""

    def fault(graph: GraphProto) -> None:
        found = loop_node(graph, loop)
        nodes: list[NodeProto] = []
        for state in states:
            index = place(graph, loop, state)
            found.input[index] = make(_adder(nodes, state), found.input[index])
        at = list(graph.node).index(found)
        for offset, made in enumerate(nodes):
            graph.node.insert(at + offset, made)

    return fault


def swapped_states(loop: str, first: str, second: str, *, inside: bool) -> Edit:
    """Two things that a loop carries change places: at the end of each round, or once when it starts."""

    def fault(graph: GraphProto) -> None:
        one, other = (place(graph, loop, state) for state in (first, second))
        if inside:
            outputs = body_of(graph, loop).output
            outputs[one - 1].name, outputs[other - 1].name = outputs[other - 1].name, outputs[one - 1].name
        else:
            inputs = loop_node(graph, loop).input
            inputs[one], inputs[other] = inputs[other], inputs[one]

    return fault


def input_through(name: str, make: Make) -> Edit:
    """An input is changed before anything reads it."""

    def fault(graph: GraphProto) -> None:
        nodes: list[NodeProto] = []
        changed = make(_adder(nodes, name), name)
        rewire_everywhere(graph, name, changed)
        for made in reversed(nodes):
            graph.node.insert(0, made)

    return fault


def input_ignored(name: str, value: np.ndarray) -> Edit:
    """The input is there, but it is always ``value``."""
    nothing = np.zeros((), value.dtype)
    return input_through(name, lambda op, given: op("Add", op("Mul", given, nothing), value))


def output_through(name: str, make: Make) -> Edit:
    """An output is changed after everything."""

    def fault(graph: GraphProto) -> None:
        source = next(found for found in graph.node if name in found.output)
        whole = f"planted/{name}"
        source.output[list(source.output).index(name)] = whole
        rewire_everywhere(graph, name, whole)
        nodes: list[NodeProto] = []
        changed = make(_adder(nodes, name), whole)
        nodes[-1].output[0] = name
        assert changed
        graph.node.extend(nodes)

    return fault


def position_moved(by: int) -> Edit:
    """The position of a step is off."""

    def fault(graph: GraphProto) -> None:
        for part, found in all_readers(graph, "pos_embedding.pe"):
            if found.op_type != "Gather" or _is_range(part, found.input[1]):
                continue
            moved = insert(part, found, "Add", [found.input[1], constant(graph, number(by))], "planted/position")
            found.input[1] = moved
            return
        raise AssertionError("no step reads a position")

    return fault


def _is_range(part: GraphProto, name: str) -> bool:
    """Whether a value is made by the encoder, which reads many positions at once."""
    return any(found.op_type == "Range" and name in found.output for found in part.node)


def compared_with_another_id(old: int, new: int) -> Edit:
    """Wherever ids are compared with ``old``, they are compared with ``new``."""

    def fault(graph: GraphProto) -> None:
        for part in all_graphs(graph):
            for found in part.node:
                if found.op_type == "Equal" and _constant_of(graph, found.input[1]) == old:
                    name = f"planted/{found.output[0]}"
                    value = numpy_helper.from_array(number(new), name)
                    at = list(part.node).index(found)
                    part.node.insert(at, helper.make_node("Constant", [], [name], name, value=value))
                    part.node[at + 1].input[1] = name

    return fault


def _constant_of(graph: GraphProto, name: str) -> int | None:
    for part in all_graphs(graph):
        for found in part.node:
            if found.op_type == "Constant" and name in found.output and found.attribute[0].name == "value":
                value = numpy_helper.to_array(found.attribute[0].t)
                return int(value.item()) if value.size == 1 and value.dtype == np.int64 else None
    return None
