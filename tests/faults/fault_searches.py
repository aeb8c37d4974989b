"""Faults in the graphs that decode: when they stop, what they keep, what they are told, and in what order."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, numpy_helper

from fault import Fault, found_by
from planting import change, constant, weight
from planting_loops import (
    Edit,
    after_each_round,
    all_readers,
    before_the_loop,
    compared_with_another_id,
    input_ignored,
    input_through,
    number,
    output_through,
    position_moved,
    swapped_states,
    through,
    turned,
)
from subject import in_graph

VALUES = found_by("rounding", "structure")
SHAPES = found_by("interface", "rounding", "structure")  # results of another length, too
WEIGHTS, INTERFACE = found_by("weights"), found_by("interface")
FLOAT = np.float32
EOS = 2
NOTHING = through("Mul", np.array(0, FLOAT))


def one_value_off(values: np.ndarray) -> np.ndarray:
    values.flat[7] *= np.float32(1 + 1e-6)
    return values


def near_copy_inside(name: str) -> Edit:
    """The step reads a copy of a weight, which a later training step did not reach."""

    def fault(graph: GraphProto) -> None:
        values = numpy_helper.to_array(weight(graph, name)).copy()
        copy = constant(graph, one_value_off(values), "planted_copy")
        part, found = all_readers(graph, name)[-1]
        assert part.name != graph.name, "it is read in front of the loop"
        found.input[list(found.input).index(name)] = copy

    return fault


def changed_inside(name: str) -> Edit:
    """A weight of the loop's own body is another."""

    def fault(graph: GraphProto) -> None:
        assert not any(tensor.name.endswith(name) for tensor in graph.initializer), "it is a weight of the graph"
        change(graph, name, one_value_off)

    return fault


def worst_first(graph: GraphProto) -> None:
    for name in ("tokens", "lengths", "scores"):
        output_through(name, turned(1))(graph)


def _row(name: str, edit: Edit, checks: frozenset[str] = VALUES, graph: str = "generate", **more: object) -> Fault:
    return Fault(name, "searches", in_graph(edit), checks, graph=graph, model="lively", others=False, **more)  # type: ignore[arg-type]


def _both(name: str, edit: Edit, checks: frozenset[str] = VALUES) -> list[Fault]:
    return [_row(f"{name}, {graph}", edit, checks, graph) for graph in ("greedy", "generate")]


GREEDY = "greedy"
INSIDE = changed_inside("decoder.layers.0.linear1.weight")
FAULTS = [
    # What tracing a decode in Python bakes in: the example's stopping (parseq#12, #108).
    *_both("the longest result of the example baked in", input_ignored("max_length", number(12)), SHAPES),
    *_both("a search that never stops at the end", compared_with_another_id(EOS, -1), SHAPES),
    _row("a search that stops at another id", compared_with_another_id(EOS, 7), SHAPES, GREEDY),
    *_both("the end allowed one token too early", input_through("min_length", through("Sub", number(1)))),
    _row("the end allowed whatever the shortest result is", input_ignored("min_length", number(0)), VALUES),
    _row("one step too many", input_through("max_length", through("Add", number(1))), SHAPES, GREEDY),
    _row("another start id", before_the_loop("phases", through("Add", number(1)), "history", "token"), SHAPES, GREEDY),
    _row("a step one position late in the loop", position_moved(1), SHAPES, GREEDY),
    *_both("sentences mixed up when others leave", after_each_round("phases", "alive", turned(0))),
    _row("padding of other sentences when one leaves", after_each_round("phases", "padding", turned(0)), SHAPES),
    _row("memory of other sentences when one leaves", after_each_round("phases", "cross_0", turned(0)), SHAPES),
    _row("memory of the other layer in the loop", swapped_states("phases", "cross_0", "cross_2", inside=False), SHAPES),
    _row("past of the other layer in the loop", swapped_states("steps", "past_0", "past_2", inside=True), SHAPES),
    _row("lengths that count the end", output_through("lengths", through("Add", number(1))), graph=GREEDY),
    _row("sentences in another order", output_through("tokens", turned(0)), graph=GREEDY),
    _row("a length penalty upside down", input_through("length_penalty", lambda op, value: op("Neg", value)), SHAPES),
    _row("scores not divided by the length", input_ignored("length_penalty", np.array(0, FLOAT)), SHAPES),
    _row("one hypothesis whatever is asked for", input_ignored("num_hypotheses", number(1)), INTERFACE),
    _row("one beam whatever is asked for", input_ignored("num_beams", number(1)), SHAPES),
    _row("one beam fewer", input_through("num_beams", through("Sub", number(1))), SHAPES),
    _row("the worst result first", worst_first),
    _row("ids in another order than their scores", output_through("tokens", turned(1))),
    _row("the past of the other beams", after_each_round("steps", "past_1", turned(1)), SHAPES),
    _row("the history of the other beams", after_each_round("steps", "history", turned(1))),
    _row("scores of the steps before forgotten", after_each_round("steps", "total", NOTHING), SHAPES),
    _row("a stop one result early", after_each_round("steps", "kept", through("Add", number(1))), SHAPES),
    _row("a stop that is late", after_each_round("steps", "kept", through("Mul", number(0))), SHAPES),
    *(
        _row(f"a weight of the loop's own body off by a millionth, {graph}", INSIDE, WEIGHTS, graph, small=True)
        for graph in ("greedy", "generate")
    ),
    _row("a near copy of a weight in the loop", near_copy_inside("classification.weight"), WEIGHTS, small=True),
]
