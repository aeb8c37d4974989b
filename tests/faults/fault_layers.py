"""Graphs put together wrongly from their layers: in another order, one twice, one left out, the end left out.

Each layer's weights are in the file bit for bit, so only what reads them is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

from onnx import GraphProto

from fault import Fault, found_by
from mytx.exporter.formats.onnx import export as onnx_format
from mytx.exporter.formats.onnx import repeat as onnx_layers
from mytx.exporter.formats.onnx.export import finish, save
from mytx.exporter.formats.onnx.layers import Stack, stacks_of
from mytx.exporter.quiet import quiet
from planting import all_graphs, bypass, node
from subject import Subject, in_graph

DECODER = "my_transformer.decoder.layers."
VALUES = found_by("rounding", "structure")
ALL = found_by("rounding", "structure", "weights")
SHAPES = found_by("interface", "rounding", "structure")


def renumbered(numbers: dict[str, str]) -> Callable[[GraphProto], None]:
    """Nodes read the weights of other layers than they should, by the layers' numbers."""

    def fault(graph: GraphProto) -> None:
        for part in all_graphs(graph):
            for found in part.node:
                for place, name in enumerate(found.input):
                    if match := re.match(rf"{re.escape(DECODER)}(\d+)(\..*)", name):
                        found.input[place] = f"{DECODER}{numbers.get(match[1], match[1])}{match[2]}"

    return fault


def assembled(change: Callable[[Stack], Stack]) -> Callable[[Subject], None]:
    """The exporter itself puts it together, told something wrong about the stack."""

    def plant(subject: Subject) -> None:
        repeat = onnx_layers._Layer.repeat

        def wrong(layer: onnx_layers._Layer, weights, inputs, outputs):  # type: ignore[no-untyped-def]
            highest = layer.stack.count - 1
            layer.stack = change(layer.stack)
            for number in range(highest + 1, layer.stack.count):  # the last one once more
                for name in [name for name in weights if name.startswith(f"{DECODER}{highest}.")]:
                    weights[name.replace(f".{highest}.", f".{number}.", 1)] = weights[name]
            repeat(layer, weights, inputs, outputs)

        graph = subject.honest_graph
        assert stacks_of(graph)
        with patch.object(onnx_layers._Layer, "repeat", wrong), quiet():
            model = onnx_format.to_onnx(graph)
        finish(model, graph.contract, {"mytx.version": "0.0.0"})
        save(model, subject.path)

    return plant


def final_norm_left_out(graph: GraphProto) -> None:
    bypass(graph, node(graph, "LayerNormalization", "my_transformer.decoder.norm/"))


def _row(name: str, plant: Callable[[Subject], None], checks: frozenset[str], **more: object) -> Fault:
    return Fault(name, "layers", plant, checks, **{"others": False, **more})  # type: ignore[arg-type]


SWAPPED = in_graph(renumbered({"0": "1", "1": "0"}))
TWICE = in_graph(renumbered({"1": "0"}))
UNREAD = "is in the file, but no output depends on it"
FAULTS = [
    _row("two layers swapped", SWAPPED, VALUES),
    _row("two layers swapped in the step", SWAPPED, VALUES, graph="step"),
    _row("two layers swapped in the loop", SWAPPED, SHAPES, graph="greedy", model="lively"),
    _row("a layer twice and another not at all", TWICE, ALL, words=UNREAD),
    _row("a layer once more", assembled(lambda stack: replace(stack, count=stack.count + 1)), ALL, words="no such"),
    _row("a layer left out", assembled(lambda stack: replace(stack, count=stack.count - 1)), ALL, words="not in the"),
    _row("the norm behind the last layer left out", in_graph(final_norm_left_out), ALL, words=UNREAD),
]
