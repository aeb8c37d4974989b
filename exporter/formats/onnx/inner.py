"""Weights that stand in graphs inside of a graph: in the body of a loop, where runtimes make the most of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import onnx
import onnx_ir as ir

from .shared_weights import SharedWeights


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The bodies of a loop or the branches of an ``If``."""
    for attribute in node.attribute:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g


def inner_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """All graphs inside of ``graph``."""
    for node in graph.node:
        for part in subgraphs(node):
            yield part
            yield from inner_graphs(part)


def inner_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The initializers that stand in graphs inside of ``graph``."""
    return (tensor for part in inner_graphs(graph) for tensor in part.initializer)


def take_inner(graph: onnx.GraphProto, outer: Sequence[str]) -> list[onnx.TensorProto]:
    """Take the initializers of inner graphs out of them; what reads them there reads them from outside.

    One whose name stands elsewhere, too, stays where it is.

    Args:
        graph: changed in place.
        outer: the names of its own initializers.
    """
    names = Counter([*outer, *(tensor.name for tensor in inner_tensors(graph))])
    taken: list[onnx.TensorProto] = []
    for part in inner_graphs(graph):
        every = list(part.initializer)
        taken += [tensor for tensor in every if names[tensor.name] == 1]
        kept = [tensor for tensor in every if names[tensor.name] > 1]
        del part.initializer[:]
        part.initializer.extend(kept)
    return taken


def move_out(model: ir.Model, shared: SharedWeights) -> None:
    """Make those initializers of inner graphs that ``weights.bin`` holds initializers of the outermost graph.

    onnxruntime in WebAssembly, and wherever else a file is opened from memory, finds weights outside of the file only
    for that one. A weight of a product goes through a node inside, which onnxruntime computes when it loads the file:
    otherwise it would not pack it. Changes ``model`` in place.
    """
    for graph in list(model.graphs()):
        for name, value in [] if graph is model.graph else list(graph.initializers.items()):
            if value.const_value is None or shared.find(value.const_value) is None:
                continue
            del graph.initializers[name]
            products = [use.node for use in value.uses() if use.node.op_type == "Gemm" and use.idx == 1]
            model.graph.initializers[name] = value
            if products:
                inside = ir.node("Concat", [value], {"axis": 0}, name=f"{name}/Concat")
                inside.outputs[0].name = f"{name}/inside"
                graph.insert_before(graph[0], [inside])
                for product in products:
                    product.replace_input_with(1, inside.outputs[0])
