"""A graph of a whole stack out of one with a single layer: the nodes of the layer again for each of the others.

The layer's nodes are those that depend on what goes into it, on its weights or on its caches, up to the mark behind it
(see :mod:`.layers`). All other nodes, those of masks for example, serve for all layers. Weights are found by their
names and never by their values: norms that are new are all equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import onnx_ir as ir
from onnx_ir.tensor_adapters import TorchTensor
from torch import Tensor

from ...contracts.contract import Contract
from .layers import DOMAIN, Stack, layer_of, of_layer


class UnlikeError(ValueError):
    """A traced graph in which the layer cannot be told from what stands around it."""


def repeat_layers(model: ir.Model, stacks: Sequence[Stack], contract: Contract, weights: Mapping[str, Tensor]) -> None:
    """Make ``model`` the graph of ``contract``.

    Args:
        model: with one layer in each stack, between marks; named by the contract of that, and simplified. Changed in
            place.
        stacks: how many layers there are to be.
        contract: of the whole graph.
        weights: of the whole graph, by state-dict name.

    Raises:
        UnlikeError: where something behind the layer, or before it, reads what is inside of it.
    """
    graph = model.graph
    outputs = {value.name or "": value for value in graph.outputs}
    inputs = {value.name or "": value for value in graph.inputs}
    for stack in stacks:
        _Layer(graph, stack, inputs, contract).repeat(weights, inputs, outputs)
    if any(node.domain == DOMAIN for node in graph):
        raise UnlikeError("a layer is called more than once")
    model.opset_imports.pop(DOMAIN, None)
    for values, found, specs in ((graph.inputs, inputs, contract.inputs), (graph.outputs, outputs, contract.outputs)):
        values.clear()
        values.extend(found[spec.name] for spec in specs)
    for index, node in enumerate(graph):
        node.name = f"{re.sub(r'_[0-9]+$', '', node.name or node.op_type)}_{index}"


class _Layer:
    """The first layer of a stack in a graph: its nodes, and the marks around it.

    Args:
        graph: that it is in.
        stack: that it is the first of.
        inputs: of the graph, by name.
        contract: of the whole graph.

    Raises:
        UnlikeError: as :func:`repeat_layers`.
    """

    def __init__(self, graph: ir.Graph, stack: Stack, inputs: Mapping[str, ir.Value], contract: Contract) -> None:
        self.graph, self.stack = graph, stack
        self.first = f"{stack.prefix}0."
        self.start, self.end = (self._mark(name) for name in ("layer_input", "layer_output"))
        if (self.start is None) != (self.end is None):
            raise UnlikeError("a layer begins and does not end")
        self.weights = [value for name, value in graph.initializers.items() if name.startswith(self.first)]
        labels = {spec.name: spec.labels for spec in contract.inputs}
        self.caches = [
            inputs[spec.name] for spec in contract.inputs if layer_of(spec) == 0 and inputs.get(spec.name) is not None
        ]
        for cache in self.caches:  # so the lengths of the first are those of all
            name = cache.name or ""
            if any(labels[of_layer(name, layer)] != labels[name] for layer in range(stack.count)):
                raise UnlikeError(f"{name} has another shape in another layer")
        self.nodes = self._nodes()

    def repeat(
        self,
        weights: Mapping[str, Tensor],
        inputs: dict[str, ir.Value],
        outputs: dict[str, ir.Value],
    ) -> None:
        """Put the other layers behind the first, and take out the marks; adds to inputs and outputs of the graph."""
        if not self.nodes:
            return
        caches = {value: name for name, value in outputs.items() if re.search(r"_(key|value)_0$", name)}
        leaving = None if self.end is None else self.end.inputs[0]
        last, place = leaving, self.nodes[-1]
        for layer in range(1, self.stack.count):
            known = self._given(layer, weights, inputs)
            if self.start is not None and last is not None:
                known[self.start.outputs[0]] = last
            copies = [self._copy(node, layer, known) for node in self.nodes]
            self.graph.insert_after(place, copies)
            place = copies[-1]
            last = None if leaving is None else known[leaving]
            for value, name in caches.items():
                if value in known:
                    made = of_layer(name, layer)
                    outputs[made] = known[value]
                    outputs[made].name = made
        if self.start is not None and self.end is not None:
            self._unmark(self.start, self.end, last, outputs)

    def _unmark(self, start: ir.Node, end: ir.Node, last: ir.Value | None, outputs: dict[str, ir.Value]) -> None:
        entering, marked = start.inputs[0], end.outputs[0]
        assert entering is not None
        assert last is not None
        ir.convenience.replace_all_uses_with(start.outputs[0], entering)
        for name, value in outputs.items():
            if value is marked:  # nothing stands behind the last layer
                self.graph.outputs[self.graph.outputs.index(marked)] = last
                last.name, last.shape, last.type = name, value.shape, value.type
                outputs[name] = last
        ir.convenience.replace_all_uses_with(marked, last)
        self.graph.remove([start, end], safe=False)

    def _mark(self, op_type: str) -> ir.Node | None:
        found = [
            node
            for node in self.graph
            if node.domain == DOMAIN and node.op_type == op_type and node.attributes["kind"].as_int() == self.stack.kind
        ]
        if len(found) > 1:
            raise UnlikeError("a layer is called more than once")
        return found[0] if found else None

    def _nodes(self) -> list[ir.Node]:
        own: set[ir.Value | None] = {*self.weights, *self.caches}
        if self.start is not None:
            own.add(self.start.outputs[0])
        inside = []
        caches = set(self.caches)
        for node in self.graph:
            if any(attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values()):
                raise UnlikeError(f"{node.name} holds a graph")
            if own.isdisjoint(node.inputs) or node is self.end:
                continue
            if node.op_type == "Shape" and node.inputs[0] in caches:
                continue  # a length, which is the same in all layers
            if node is self.start or (node.domain == DOMAIN):
                raise UnlikeError(f"{node.name} of another layer reads what is inside of this one")
            inside.append(node)
            own.update(node.outputs)
        self._check(inside)
        return inside

    def _check(self, inside: list[ir.Node]) -> None:
        """Nothing behind the layer reads what is inside of it, and nothing inside of it what comes later."""
        order = {node: number for number, node in enumerate(self.graph)}
        if self.end is not None and inside and order[inside[-1]] > order[self.end]:
            raise UnlikeError("a layer goes on behind its end")
        if inside and inside[-1] is not None:
            last = order[inside[-1]]
            early = [node for node in self.graph if order[node] < last and self._reads_end(node)]
            if early:
                raise UnlikeError(f"{early[0].name} is behind the layer and before its end")

    def _reads_end(self, node: ir.Node) -> bool:
        return self.end is not None and self.end.outputs[0] in node.inputs

    def _given(
        self, layer: int, weights: Mapping[str, Tensor], inputs: dict[str, ir.Value]
    ) -> dict[ir.Value, ir.Value]:
        """What stands in a copy for the weights and the caches of the first layer."""
        known: dict[ir.Value, ir.Value] = {}
        for value in self.weights:
            name = f"{self.stack.prefix}{layer}.{(value.name or '').removeprefix(self.first)}"
            made = ir.Value(
                name=name,
                type=value.type,
                shape=value.shape,
                const_value=TorchTensor(weights[name].detach(), name=name),
                metadata_props={"weight": name},
            )
            self.graph.initializers[name] = made
            known[value] = made
        for value in self.caches:
            name = of_layer(value.name or "", layer)
            inputs[name] = known[value] = ir.Value(name=name, type=value.type, shape=value.shape)
        return known

    def _copy(self, node: ir.Node, layer: int, known: dict[ir.Value, ir.Value]) -> ir.Node:
        name = re.sub(rf"^{re.escape(self.first[:-1])}(?=[./])", f"{self.stack.prefix}{layer}", node.name or "")
        made = ir.Node(
            node.domain,
            node.op_type,
            [None if value is None else known.get(value, value) for value in node.inputs],
            list(node.attributes.values()),
            overload=node.overload,
            num_outputs=len(node.outputs),
            version=node.version,
            name=name,
            metadata_props=dict(node.metadata_props),
        )
        for value, copied in zip(node.outputs, made.outputs, strict=True):
            copied.name, copied.shape, copied.type = f"{value.name}/layer_{layer}", value.shape, value.type
            known[value] = copied
        return made
