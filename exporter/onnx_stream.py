"""Write and read an ONNX file of any size one weight at a time, be they in it or in ``weights.bin`` beside it.

``onnx_ir.save`` without external data holds every weight three times while it serialises (measured: 1.1 GB for
373 MB of weights), ``onnx.load`` twice. A protobuf message is its fields one after the other, so the weights can go
straight from the model to the file and back: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import numpy_helper

from .errors import ExportError
from .onnx_inner import inner_size, inner_tensors, move_out, take_inner
from .shared_weights import INLINE_LIMIT, WEIGHTS, Place, SharedWeights

Array = NDArray[np.generic]

# Field number and wire type 2 (length-delimited), from onnx.proto.
MODEL_GRAPH = bytes([7 << 3 | 2])
GRAPH_INITIALIZER = bytes([5 << 3 | 2])
TENSOR_RAW_DATA = bytes([9 << 3 | 2])
KEPT = 1 << 16  # bytes: what is larger is not kept in memory while a file is read from


def write_model(model: ir.Model, path: Path, shared: SharedWeights | None = None) -> None:
    """Write ``model`` to ``path``; ``model`` stays as it is.

    Args:
        model: with its weights as initializers of its graph, or of graphs inside of it.
        path: the file.
        shared: weights in the same folder: what they hold is referred to. All else stands in the file.

    Raises:
        OSError: where the file cannot be written.
        ExportError: where it would be larger than protobuf allows.
    """
    skeleton = model.clone()
    if shared:
        move_out(skeleton, shared)
    if inner_size(skeleton) > INLINE_LIMIT:  # more than can be put into a message at all
        raise _too_large(path, inner_size(skeleton), shared)
    weights = [value for value in skeleton.graph.initializers.values() if value.const_value is not None]
    skeleton.graph.initializers.clear()
    proto = ir.to_proto(skeleton)
    graph = proto.graph.SerializeToString()
    proto.ClearField("graph")

    tensors = []
    size = len(graph)
    for value in weights:
        tensor = value.const_value
        assert tensor is not None
        place = shared.find(tensor) if shared else None
        head = _tensor_head(value.name or "", tensor, place)
        inside = 0 if place else tensor.nbytes
        prefix = GRAPH_INITIALIZER + _varint(len(head) + inside) + head
        tensors.append((prefix, None if place else tensor))
        size += len(prefix) + inside
    if size > INLINE_LIMIT:
        raise _too_large(path, size, shared)

    with path.open("wb") as file:
        file.write(proto.SerializeToString())
        file.write(MODEL_GRAPH + _varint(size) + graph)
        for prefix, inner in tensors:
            file.write(prefix)
            if inner is not None:
                file.write(inner.tobytes())


def read_header(path: Path) -> onnx.ModelProto:
    """The model of the file at ``path`` without its graph: versions, opsets, metadata. Raises as :func:`read_model`."""
    model = onnx.ModelProto()
    with path.open("rb") as file:
        for head, start, end in _fields(file, 0, path.stat().st_size):
            if head[:1] != MODEL_GRAPH:
                file.seek(start)
                model.MergeFromString(head + file.read(end - start))
    return model


def read_model(path: Path) -> tuple[onnx.GraphProto, Iterator[onnx.TensorProto]]:
    """The graph of the file at ``path`` without its initializers, and these one after the other.

    Those of graphs inside of it, the bodies of loops, are among them, and what reads them there reads them from
    outside; but where a name stands twice in a file, its tensors stay where they are: see :mod:`.onnx_inner`. A
    weight that stands in another file comes without its values: see :func:`read_values`.

    Raises:
        OSError: where it cannot be read.
        Exception: protobuf's or ``ValueError``, where it is not ONNX.
    """
    graph, places = _graph(path)
    moved: list[onnx.TensorProto] = []
    if any(True for _ in inner_tensors(graph)):
        moved = take_inner(graph, [tensor.name for _, tensor in _tensors(path, places)])
    return graph, itertools.chain((tensor for _, tensor in _tensors(path, places)), moved)


def read_values(tensor: onnx.TensorProto, path: Path) -> Array:
    """The values of a tensor of the file at ``path``, wherever they are.

    Raises:
        OSError: where the file that they are in cannot be read.
        Exception: onnx's or ``ValueError``, where that is not a regular file in the same folder, or too short.
    """
    return numpy_helper.to_array(tensor, str(path.parent))


class Weights(Mapping[str, Array]):
    """The graph of a file, and its initializers by name. Large ones are read when they are asked for, each time.

    Attributes:
        graph: without its initializers.

    Raises:
        Exception: as :func:`read_model` and :func:`read_values`.
    """

    def __init__(self, path: Path) -> None:
        self.graph, places = _graph(path)
        self._path = path
        self._kept: dict[str, Array] = {}
        self._places: dict[str, tuple[int, int]] = {}
        for place, tensor in _tensors(path, places):
            if tensor.ByteSize() > KEPT or tensor.data_location == onnx.TensorProto.EXTERNAL:
                self._places[tensor.name] = place
            else:
                self._kept[tensor.name] = read_values(tensor, path)
        for tensor in take_inner(self.graph, [*self._kept, *self._places]):
            self._kept[tensor.name] = read_values(tensor, path)  # it was read with the node that it is in

    def __getitem__(self, name: str) -> Array:
        if name in self._kept:
            return self._kept[name]
        ((_, tensor),) = _tensors(self._path, [self._places[name]])
        return read_values(tensor, self._path)

    def __iter__(self) -> Iterator[str]:
        yield from self._kept
        yield from self._places

    def __len__(self) -> int:
        return len(self._kept) + len(self._places)


def _graph(path: Path) -> tuple[onnx.GraphProto, list[tuple[int, int]]]:
    """The graph without its initializers, and where in the file these are: their beginnings and ends."""
    graph = onnx.GraphProto()
    places: list[tuple[int, int]] = []
    with path.open("rb") as file:
        for head, start, end in _fields(file, 0, path.stat().st_size):
            if head[:1] != MODEL_GRAPH:
                continue
            for inner, inner_start, inner_end in _fields(file, start, end):
                if inner[:1] == GRAPH_INITIALIZER:
                    places.append((inner_start, inner_end))
                else:
                    file.seek(inner_start)
                    graph.MergeFromString(inner + file.read(inner_end - inner_start))
    return graph, places


def _too_large(path: Path, size: int, shared: SharedWeights | None) -> ExportError:
    return ExportError(
        f"{path.name} would have {size / 1e9:.1f} GB, a file of ONNX at most 2 GB",
        "choose fewer graphs, or a smaller model" if shared else "export it with --weights shared",
    )


def _tensors(path: Path, places: list[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], onnx.TensorProto]]:
    with path.open("rb") as file:
        for start, end in places:
            file.seek(start)
            yield (start, end), onnx.TensorProto.FromString(file.read(end - start))


def _fields(file: BinaryIO, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """The fields of the message from ``start`` to ``end``: what stands before the value, and where the value is."""
    while start < end:
        file.seek(start)
        head = file.read(20)  # two numbers of at most ten bytes
        tag, position = _read_varint(head, 0)
        kind = tag & 7
        if kind == 2:
            length, position = _read_varint(head, position)
        elif kind == 0:
            length = _read_varint(head, position)[1] - position
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"{kind} is no wire type of protobuf")
        value = start + position
        if value + length > end:
            raise ValueError("the file is truncated")
        yield head[:position], value, value + length
        start = value + length


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The number at ``position``, and where the next thing stands."""
    number = shift = 0
    while position < len(data):
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number, position
    raise ValueError("the file is truncated")


def _tensor_head(name: str, tensor: ir.TensorProtocol, place: Place | None) -> bytes:
    """A ``TensorProto`` up to where its raw data begins; all of it, where its values are at another place."""
    proto = onnx.TensorProto(name=name, data_type=int(tensor.dtype), dims=tensor.shape.numpy())
    if place is None:
        return bytes(proto.SerializeToString()) + TENSOR_RAW_DATA + _varint(tensor.nbytes)
    proto.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", WEIGHTS), ("offset", place.offset), ("length", place.length)):
        proto.external_data.add(key=key, value=str(value))
    return bytes(proto.SerializeToString())


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])
