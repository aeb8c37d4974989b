"""Write and read an ONNX file of any size up to protobuf's limit one weight at a time.

``onnx_ir.save`` without external data holds every weight three times while it serialises (measured: 1.1 GB for
373 MB of weights), ``onnx.load`` twice. A protobuf message is its fields one after the other, so the weights can go
straight from the model to the file and back: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import onnx
import onnx_ir as ir
from onnx.external_data_helper import load_external_data_for_tensor

# Field number and wire type 2 (length-delimited), from onnx.proto.
MODEL_GRAPH = bytes([7 << 3 | 2])
GRAPH_INITIALIZER = bytes([5 << 3 | 2])
TENSOR_RAW_DATA = bytes([9 << 3 | 2])


def write_model(model: ir.Model, path: Path) -> None:
    """Write ``model`` to ``path`` with its weights inside; ``model`` stays as it is.

    Raises:
        OSError: where the file cannot be written.
    """
    skeleton = model.clone()
    weights = [value for value in skeleton.graph.initializers.values() if value.const_value is not None]
    skeleton.graph.initializers.clear()
    proto = ir.to_proto(skeleton)
    graph = proto.graph.SerializeToString()
    proto.ClearField("graph")

    tensors = []
    size = len(graph)
    for value in weights:
        assert value.const_value is not None
        head = _tensor_head(value.name or "", value.const_value)
        length = len(head) + value.const_value.nbytes
        prefix = GRAPH_INITIALIZER + _varint(length) + head
        tensors.append((prefix, value.const_value))
        size += len(prefix) + value.const_value.nbytes

    with path.open("wb") as file:
        file.write(proto.SerializeToString())
        file.write(MODEL_GRAPH + _varint(size) + graph)
        for prefix, tensor in tensors:
            file.write(prefix)
            file.write(tensor.tobytes())


def read_header(path: Path) -> onnx.ModelProto:
    """The model of the file at ``path`` without its graph: versions, opsets, metadata. Raises as :func:`read_model`."""
    model = onnx.ModelProto()
    with path.open("rb") as file:
        for head, start, end in _fields(file, 0, path.stat().st_size):
            if head[:1] != MODEL_GRAPH:
                file.seek(start)
                model.MergeFromString(head + file.read(end - start))
    return model


def read_model(path: Path, *, load_external: bool = True) -> tuple[onnx.GraphProto, Iterator[onnx.TensorProto]]:
    """The graph of the file at ``path`` without its initializers, and these one after the other.

    Args:
        path: the file.
        load_external: read the weights that are in other files.

    Raises:
        OSError: where it, or a file that holds its weights, cannot be read.
        Exception: protobuf's or ``ValueError``, where it is not ONNX.
    """
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
    return graph, _tensors(path, places, load_external)


def _tensors(path: Path, places: list[tuple[int, int]], load_external: bool) -> Iterator[onnx.TensorProto]:
    with path.open("rb") as file:
        for start, end in places:
            file.seek(start)
            tensor = onnx.TensorProto.FromString(file.read(end - start))
            if load_external and tensor.data_location == onnx.TensorProto.EXTERNAL:
                load_external_data_for_tensor(tensor, str(path.parent))
            yield tensor


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


def _tensor_head(name: str, tensor: ir.TensorProtocol) -> bytes:
    """A ``TensorProto`` up to where its raw data begins."""
    proto = onnx.TensorProto(name=name, data_type=int(tensor.dtype), dims=tensor.shape.numpy())
    return bytes(proto.SerializeToString()) + TENSOR_RAW_DATA + _varint(tensor.nbytes)


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])
