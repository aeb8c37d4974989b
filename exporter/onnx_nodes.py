"""Writing ONNX graphs by hand: nodes one after the other, loops, branches, and graphs inside graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

FLOAT, INT, BOOL = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL
END = np.iinfo(np.int64).max  # of a slice

# Makes the nodes of a loop's round: whether to go on, and what the next round gets.
Round = Callable[["Nodes", dict[str, ir.Value]], tuple[ir.Value, dict[str, ir.Value]]]
Kinds = Mapping[str, tuple[ir.DataType, int]]


class Nodes:
    """Collects nodes: ``op("Add", a, b)`` appends one and returns its output."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.list: list[ir.Node] = []

    def __call__(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        return self.many(1, op_type, *inputs, **attributes)[0]

    def many(self, count: int, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> Sequence[ir.Value]:
        """As calling it, for a node with ``count`` outputs."""
        name = f"{self.prefix}{op_type}_{len(self.list)}"
        node = ir.node(op_type, inputs, attributes or None, num_outputs=count, name=name)
        for index, value in enumerate(node.outputs):
            value.name = f"{name}:{index}"
        self.list.append(node)
        return node.outputs

    def constant(self, value: object, dtype: type = np.int64) -> ir.Value:
        """A constant of any shape."""
        return self("Constant", value=ir.tensor(np.array(value, dtype=dtype)))

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        """The length of a dimension, ``[1]``."""
        return self("Shape", value, start=axis, end=axis + 1)

    def shape(self, *parts: ir.Value | int) -> ir.Value:
        """A shape out of lengths ``[1]`` and numbers."""
        return self("Concat", *(self.constant([part]) if isinstance(part, int) else part for part in parts), axis=0)

    def filled(self, value: object, dtype: type, *shape: ir.Value | int) -> ir.Value:
        """A tensor full of ``value``."""
        return self("ConstantOfShape", self.shape(*shape), value=ir.tensor(np.array([value], dtype=dtype)))

    def scalar(self, value: ir.Value) -> ir.Value:
        """``[1]`` -> ``[]``."""
        return self("Squeeze", value, self.constant([0]))

    def count(self, length: ir.Value) -> ir.Value:
        """0 to ``length [1]``, which is left out."""
        return self("Range", self.constant(0), self.scalar(length), self.constant(1))

    def slice(self, value: ir.Value, axis: int, start: ir.Value | int, end: ir.Value | int = END) -> ir.Value:
        """A part of a dimension."""
        bounds = [self.constant([bound]) if isinstance(bound, int) else bound for bound in (start, end)]
        return self("Slice", value, *bounds, self.constant([axis]))

    def add_axis(self, value: ir.Value, axis: int) -> ir.Value:
        """A dimension of 1."""
        return self("Unsqueeze", value, self.constant([axis]))

    def any(self, value: ir.Value) -> ir.Value:
        """Whether any of a bool tensor is true, ``[]``."""
        return self("Cast", self("ReduceMax", self("Cast", value, to=INT), keepdims=0), to=BOOL)

    def graph(self, name: str, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> ir.Graph:
        """What was collected, as the graph of a loop or branch: each output made inside, and none twice."""
        made = {value for node in self.list for value in node.outputs}
        results: list[ir.Value] = []
        for value in outputs:
            results.append(value if value in made and value not in results else self("Identity", value))
        return ir.Graph(list(inputs), results, nodes=self.list, name=name)

    def loop(
        self,
        name: str,
        trips: ir.Value,
        carried: Mapping[str, ir.Value],
        kinds: Kinds,
        body: Round,
        enter: ir.Value | None = None,
    ) -> dict[str, ir.Value]:
        """An ONNX ``Loop``.

        Args:
            name: of the loop.
            trips: at most so many rounds, int64 ``[]``.
            carried: what goes into the first round.
            kinds: dtype and rank of each.
            body: makes a round.
            enter: whether there is a first round, bool ``[]``; None is yes.

        Returns:
            What comes out of the last round.
        """
        inner = Nodes(f"{name}/")
        inside = {key: tensor(f"{name}/{key}", *kinds[key]) for key in carried}
        header = [tensor(f"{name}/round", INT, 0), tensor(f"{name}/going", BOOL, 0)]
        going, results = body(inner, inside)
        graph = inner.graph(name, [*header, *inside.values()], [going, *(results[key] for key in carried)])
        enter = self.constant(True, np.bool_) if enter is None else enter
        outputs = self.many(len(carried), "Loop", trips, enter, *carried.values(), body=graph)
        return dict(zip(carried, outputs, strict=True))

    def choose(
        self,
        name: str,
        condition: ir.Value,
        then: Callable[[Nodes], Sequence[ir.Value]],
        other: Callable[[Nodes], Sequence[ir.Value]],
    ) -> Sequence[ir.Value]:
        """An ONNX ``If`` on ``condition`` (``[]``); both sides give the same number of values."""
        graphs = []
        for side, make in (("then", then), ("else", other)):
            inner = Nodes(f"{name}/{side}/")
            outputs = make(inner)
            graphs.append(inner.graph(f"{name}/{side}", [], outputs))
        return self.many(len(graphs[0].outputs), "If", condition, then_branch=graphs[0], else_branch=graphs[1])


@dataclass(frozen=True)
class Part:
    """An exported graph, to be used inside another.

    Attributes:
        model: stays as it is.
        prefix: of the names of its nodes and inner values.
    """

    model: ir.Model
    prefix: str

    def inline(self, op: Nodes, given: Mapping[str, ir.Value], initializers: dict[str, ir.Value]) -> list[ir.Value]:
        """Append its nodes to ``op``; returns its outputs.

        Args:
            op: where it is used.
            given: a value for each input.
            initializers: of the outermost graph, by name: its own are added, weights that are there already are used.
        """
        graph = self.model.clone().graph
        for value in graph.inputs:
            ir.convenience.replace_all_uses_with(value, given[value.name or ""])
        for name, value in list(graph.initializers.items()):
            kept = name if "weight" in value.metadata_props else self.prefix + name
            del graph.initializers[name]
            if kept in initializers:
                ir.convenience.replace_all_uses_with(value, initializers[kept])
            else:
                value.name = kept
                initializers[kept] = value
        outputs, nodes = list(graph.outputs), list(graph)
        graph.outputs.clear()
        graph.remove(nodes)
        for node in nodes:
            node.name = self.prefix + (node.name or "")
            for value in node.outputs:
                value.name = self.prefix + (value.name or "")
        op.list.extend(nodes)
        return outputs


def tensor(name: str, dtype: ir.DataType, rank: int) -> ir.Value:
    """A value with a dtype and a rank; lengths are left open."""
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([None] * rank))
