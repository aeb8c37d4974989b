"""Writing ONNX graphs by hand: nodes one after the other, loops, branches, and graphs inside graphs.

What a loop computes anew in every round although it is the same in all is the usual waste here, and no runtime takes it
out. So a node that is written in the body of a loop goes to the outermost loop in which its inputs are known.

Weights that only the body of a loop uses are initializers of its own graph, and what is computed of them alone stays
there: onnxruntime computes it when it loads the file, and packs it for the matrix products. Packed, these are 1.3 to
1.6 times as fast. A weight from further out than the next graph is not packed, and each that comes from outside costs
time in every round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """Collects the nodes of a graph: ``op("Add", a, b)`` makes one and returns its output.

    Args:
        prefix: of the names.
        outer: the graph around that of a loop or branch; None for the outermost.
        hoists: whether nodes go further out where they can. Not for a branch: who takes the other one would pay.
    """

    def __init__(self, prefix: str = "", outer: Nodes | None = None, hoists: bool = False) -> None:
        self.prefix = prefix
        self.outer = outer
        self.hoists = hoists
        self.list: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}  # of a loop or branch itself
        self.depth: int = 0 if outer is None else outer.depth + 1
        # Of all graphs: how many nodes have a name, and where each value is known; initializers everywhere.
        self.names: Counter[str] = Counter() if outer is None else outer.names
        self.homes: dict[ir.Value, Nodes] = {} if outer is None else outer.homes

    def __call__(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        return self.many(1, op_type, *inputs, **attributes)[0]

    def many(self, count: int, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> Sequence[ir.Value]:
        """As calling it, for a node with ``count`` outputs."""
        node = self._node(count, op_type, *inputs, **attributes)
        self.add(node)
        return node.outputs

    def _node(self, count: int, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Node:
        name = f"{self.prefix}{op_type}"
        self.names[name] += 1
        name = f"{name}_{self.names[name]}"
        node = ir.node(op_type, inputs, attributes or None, num_outputs=count, name=name)
        for index, value in enumerate(node.outputs):
            value.name = f"{name}:{index}"
        return node

    def add(self, node: ir.Node) -> None:
        """Put ``node`` where it belongs. One with graphs of its own, which may read anything, stays here."""
        inner = any(attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values())
        place = self if inner else self.home(node.inputs)
        place.list.append(node)
        place.homes.update(dict.fromkeys(node.outputs, place))

    def home(self, values: Iterable[ir.Value | None]) -> Nodes:
        """The outermost loop in which all of ``values`` are known, as far as nodes are let out of here."""
        depth = max((self.homes[value].depth for value in values if value in self.homes), default=0)
        place = self
        while place.depth > max(depth, 1) and place.hoists and place.outer is not None:
            place = place.outer
        return place

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
            if value not in made or value in results:
                self.list.append(self._node(1, "Identity", value))
                value = self.list[-1].outputs[0]
            results.append(value)
        own = list(self.initializers.values())
        return ir.Graph(list(inputs), results, nodes=self.list, initializers=own, name=name)

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
        inner = Nodes(f"{name}/", self, hoists=True)
        inside = {key: tensor(f"{name}/{key}", *kinds[key]) for key in carried}
        header = [tensor(f"{name}/round", INT, 0), tensor(f"{name}/going", BOOL, 0)]
        self.homes.update(dict.fromkeys([*header, *inside.values()], inner))
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
            inner = Nodes(f"{name}/{side}/", self)
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

    def initializer(self, name: str, initializers: dict[str, ir.Value]) -> ir.Value:
        """A weight by its name, added to ``initializers`` if it is not there."""
        if name not in initializers:
            own = self.model.graph.initializers[name]
            initializers[name] = ir.Value(
                name=name,
                type=own.type,
                shape=own.shape,
                const_value=own.const_value,
                metadata_props=dict(own.metadata_props),
            )
        return initializers[name]

    def inline(self, op: Nodes, given: Mapping[str, ir.Value], initializers: dict[str, ir.Value]) -> list[ir.Value]:
        """Append its nodes to ``op``, or where they are hoisted to; returns its outputs.

        Args:
            op: where it is used.
            given: a value for each input, and for initializers that another value takes the place of.
            initializers: of the outermost graph, by name: its own are added, weights that are there already are used.
                Inside a loop weights that are not there become initializers of the loop's body.
        """
        graph = self.model.clone().graph
        for value in graph.inputs:
            ir.convenience.replace_all_uses_with(value, given[value.name or ""])
        for name, value in list(graph.initializers.items()):
            kept = name if "weight" in value.metadata_props else self.prefix + name
            del graph.initializers[name]
            if name in given:
                ir.convenience.replace_all_uses_with(value, given[name])
            elif kept in initializers:
                ir.convenience.replace_all_uses_with(value, initializers[kept])
            elif kept == name and op.outer is not None:
                op.initializers[kept] = value
                op.homes[value] = op
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
            op.add(node)
        return outputs


def tensor(name: str, dtype: ir.DataType, rank: int) -> ir.Value:
    """A value with a dtype and a rank; lengths are left open."""
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([None] * rank))
