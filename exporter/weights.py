"""Check 1: every weight is in the file, bit for bit, under its state-dict name. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from .plan import Array

# A float constant with more values than this is a weight that the model does not have.
CONSTANT_LIMIT = 16
_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}


def check_weights(path: Path, expected: Mapping[str, Array]) -> list[str]:
    """What is wrong with the weights of the ONNX file at ``path``; nothing, if all is well.

    Args:
        path: the file.
        expected: the model's parameters and buffers that this graph holds, by state-dict name.
    """
    graph = onnx.load(path).graph
    found = {tensor.name: tensor for tensor in graph.initializer}
    read = {name for node in _nodes(graph) for name in node.input}
    problems = []
    for name, weight in expected.items():
        if name not in found:
            problems.append(f"{name} is not in the file")
        elif name not in read:
            problems.append(f"{name} is in the file, but nothing reads it")
        else:
            problems += _differences(name, numpy_helper.to_array(found[name]), weight)
    for name, tensor in found.items():
        if name not in expected and _is_large_float(tensor):
            problems.append(f"{name} is in the file, but the model has no such weight")
    for node in _nodes(graph):
        if any(_is_large_float(attribute.t) for attribute in node.attribute):
            problems.append(f"{node.name} holds a constant of the size of a weight, but the model has no such weight")
    return problems


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes, those of subgraphs too."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for subgraph in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
                yield from _nodes(subgraph)


def _differences(name: str, found: Array, weight: Array) -> list[str]:
    if found.dtype != weight.dtype:
        return [f"{name} is {found.dtype} in the file, {weight.dtype} in the model"]
    if found.shape != weight.shape:
        return [f"{name} is {list(found.shape)} in the file, {list(weight.shape)} in the model"]
    changed = int(np.count_nonzero(_bits(found) != _bits(weight)))
    return [f"{name} differs from the model in {changed} of {weight.size} values"] if changed else []


def _bits(values: Array) -> Array:
    """The values as integers of the same bits: NaN equals itself, and 0 is not -0."""
    return np.ascontiguousarray(values).view(np.dtype(f"u{values.dtype.itemsize}"))


def _is_large_float(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in _FLOATS and int(np.prod(tensor.dims)) > CONSTANT_LIMIT
