"""ONNX files on disk: written with ``weights.bin`` beside them, and read without copies of their weights.

Weights that ``weights.bin`` holds are external data: a file then has only their places, and a model of any size is read
and written in little memory. A file with its weights inside is read as a whole, and writing it takes three times its
size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import numpy_helper

from ...cases.case import Array
from ...errors import ExportError
from .inner import move_out, take_inner
from .shared_weights import INLINE_LIMIT, SharedWeights


def write_model(model: ir.Model, path: Path, shared: SharedWeights | None = None) -> None:
    """Write ``model`` to ``path``; ``model`` stays as it is.

    Args:
        model: with its weights as initializers of its graph, or of graphs inside it.
        path: the file.
        shared: weights in the same folder. Initializers with their values become references; all others are stored in
            the file.

    Raises:
        OSError: if the file cannot be written.
        ExportError: if it would be larger than protobuf allows.
    """
    stored = model.clone()
    if shared:
        move_out(stored, shared)
    size = 0  # of what stands in the file, in bytes
    for value in [value for graph in stored.graphs() for value in graph.initializers.values()]:
        tensor = value.const_value
        assert tensor is not None
        place = shared.find(tensor) if shared else None
        if place is None:
            size += tensor.nbytes
            continue
        assert shared is not None
        value.const_value = ir.ExternalTensor(
            shared.path.name,
            place.offset,
            place.length,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=value.name or "",
            base_dir=path.parent,
        )
    if size > INLINE_LIMIT:
        raise ExportError(
            f"{path.name} would have {size / 1e9:.1f} GB, a file of ONNX at most 2 GB",
            "choose fewer graphs, or a smaller model" if shared else "export it with --weights shared",
        )
    proto = ir.to_proto(stored)
    del proto.graph.value_info[:]  # of initializers: their own types say it already
    path.write_bytes(proto.SerializeToString())


def read_header(path: Path) -> onnx.ModelProto:
    """The model of the file at ``path`` without its graph: versions, opsets, metadata. Raises as :func:`read_model`."""
    model = _load(path)
    model.ClearField("graph")
    return model


def read_model(path: Path) -> tuple[onnx.GraphProto, list[onnx.TensorProto]]:
    """The graph of the file at ``path`` without its initializers, and the initializers.

    Initializers of graphs inside it, the bodies of loops, are among them. Only where two graphs of a file have
    initializers of the same name, those inside stay where they are: see :mod:`.inner`. A weight that stands in
    another file comes without its values: see :func:`read_values`.

    Raises:
        OSError: if it cannot be read.
        Exception: protobuf's, if it is not ONNX.
    """
    graph = _load(path).graph
    tensors = list(graph.initializer)
    del graph.initializer[:]
    return graph, tensors + take_inner(graph, [tensor.name for tensor in tensors])


def read_values(tensor: onnx.TensorProto, path: Path) -> Array:
    """The values of a tensor of the file at ``path``, wherever they are stored.

    Raises:
        OSError: if the file that holds them cannot be read.
        Exception: onnx's or ``ValueError``, if that is not a regular file in the same folder, or too short.
    """
    return numpy_helper.to_array(tensor, str(path.parent))


class Weights(Mapping[str, Array]):
    """The graph of a file, and its initializers by name. Their values are read when they are asked for, each time.

    Attributes:
        graph: without its initializers.

    Raises:
        Exception: as :func:`read_model` and :func:`read_values`.
    """

    def __init__(self, path: Path) -> None:
        self.graph, tensors = read_model(path)
        self._path = path
        self._tensors = {tensor.name: tensor for tensor in tensors}

    def __getitem__(self, name: str) -> Array:
        return read_values(self._tensors[name], self._path)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _load(path: Path) -> onnx.ModelProto:
    return onnx.load(path, format="protobuf", load_external_data=False)
