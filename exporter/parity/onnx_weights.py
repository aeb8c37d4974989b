"""Check 1 for ONNX files. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from ..cases.case import Array
from ..formats.onnx.inner import inner_graphs, subgraphs
from ..formats.onnx.storage import read_model, read_values
from .weight_values import CONSTANT_LIMIT, differences

# Dtypes of weights. Other integers are ids, positions and shapes.
_KINDS = {
    getattr(onnx.TensorProto, name)
    for name in ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT8", "UINT8", "INT4", "UINT4")
}


def check_weights(path: Path, expected: Mapping[str, Array], *, others: bool = False) -> list[str]:
    """What is wrong with the weights of the ONNX file at ``path``; nothing, if all is well.

    Args:
        path: the file.
        expected: the model's parameters and buffers that this graph holds, by state-dict name.
        others: whether there may be others: a model that is not ours may have tensors that are neither.
    """
    graph, initializers = read_model(path)
    needed = _read(graph)
    missing = dict.fromkeys(expected)
    problems = []
    for tensor in initializers:
        name = tensor.name
        if name not in expected:
            problems += [] if others else _unknown(tensor)
            continue
        missing.pop(name, None)
        if name not in needed:
            problems.append(f"{name} is in the file, but no output depends on it")
        else:
            problems += differences(name, read_values(tensor, path), expected[name])
    problems += [f"{name} is not in the file" for name in missing]
    if others:
        return problems
    for part in (graph, *inner_graphs(graph)):
        for tensor in [*part.initializer, *(sparse.values for sparse in part.sparse_initializer)]:
            problems += _unknown(tensor)
    problems += [
        f"{node.name} holds a constant of the size of a weight, but the model has no such weight"
        for part in (graph, *inner_graphs(graph))
        for node in part.node
        if any(_is_large_constant(attribute) for attribute in node.attribute)
    ]
    return problems


def _unknown(tensor: onnx.TensorProto) -> list[str]:
    return [f"{tensor.name} is in the file, but the model has no such weight"] if _is_large_weight(tensor) else []


def _read(graph: onnx.GraphProto) -> set[str]:
    """The names that an output depends on."""
    needed = {output.name for output in graph.output}
    for node in reversed(graph.node):  # ONNX has nodes after what they read
        if needed.intersection(node.output):
            needed.update(node.input)
            for subgraph in subgraphs(node):
                needed.update(
                    name for part in (subgraph, *inner_graphs(subgraph)) for inner in part.node for name in inner.input
                )
    return needed


def _is_large_constant(attribute: onnx.AttributeProto) -> bool:
    return (
        _is_large_weight(attribute.t)
        or _is_large_weight(attribute.sparse_tensor.values)
        or len(attribute.floats) > CONSTANT_LIMIT
    )


def _is_large_weight(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in _KINDS and int(np.prod(tensor.dims)) > CONSTANT_LIMIT
