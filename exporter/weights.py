"""Check 1: every weight is in the file, bit for bit, under its state-dict name. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx

from .onnx_inner import subgraphs
from .onnx_stream import read_model, read_values
from .plan import Array
from .report import Finding

# A float constant with more values than this is a weight that the model does not have.
CONSTANT_LIMIT = 16
_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}


def weight_findings(path: Path, look: Callable[[], list[str]]) -> list[Finding]:
    """What ``look`` says is wrong with the weights of the file at ``path``, for the report.

    A file that cannot be read, being damaged or without the one that its weights are in, is wrong, too.
    """
    try:
        problems = look()
    except Exception as error:  # what a damaged file makes of its reader is not to be foreseen
        problems = [f"{path.name} cannot be read: {' '.join(str(error).split())}"]
    return [Finding("weights", problem) for problem in problems]


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
            problems += _differences(name, read_values(tensor, path), expected[name])
    problems += [f"{name} is not in the file" for name in missing]
    if others:
        return problems
    for part in _graphs(graph):
        for tensor in [*part.initializer, *(sparse.values for sparse in part.sparse_initializer)]:
            problems += _unknown(tensor)
    problems += [
        f"{node.name} holds a constant of the size of a weight, but the model has no such weight"
        for part in _graphs(graph)
        for node in part.node
        if any(_is_large_constant(attribute) for attribute in node.attribute)
    ]
    return problems


def compare_weights(found: Mapping[str, Array], read: Collection[str], expected: Mapping[str, Array]) -> list[str]:
    """What is wrong with weights that are in memory.

    Args:
        found: what the file holds, by state-dict name.
        read: the names that its graph reads.
        expected: as for :func:`check_weights`.
    """
    problems = []
    for name, array in found.items():
        if name not in expected:
            problems.append(f"{name} is in the file, but the graph has no such weight in the model")
        elif name not in read:
            problems.append(f"{name} is in the file, but no output depends on it")
        else:
            problems += _differences(name, array, expected[name])
    return problems + [f"{name} is not in the file" for name in expected if name not in found]


def _unknown(tensor: onnx.TensorProto) -> list[str]:
    return [f"{tensor.name} is in the file, but the model has no such weight"] if _is_large_float(tensor) else []


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """``graph`` and those inside its nodes."""
    yield graph
    for node in graph.node:
        for subgraph in subgraphs(node):
            yield from _graphs(subgraph)


def _read(graph: onnx.GraphProto) -> set[str]:
    """The names that an output depends on."""
    needed = {output.name for output in graph.output}
    for node in reversed(graph.node):  # ONNX has nodes after what they read
        if needed.intersection(node.output):
            needed.update(node.input)
            for subgraph in subgraphs(node):
                needed.update(name for part in _graphs(subgraph) for inner in part.node for name in inner.input)
    return needed


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


def _is_large_constant(attribute: onnx.AttributeProto) -> bool:
    return (
        _is_large_float(attribute.t)
        or _is_large_float(attribute.sparse_tensor.values)
        or len(attribute.floats) > CONSTANT_LIMIT
    )


def _is_large_float(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in _FLOATS and int(np.prod(tensor.dims)) > CONSTANT_LIMIT
