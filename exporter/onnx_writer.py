"""Write an ONNX file of any size up to protobuf's limit one weight at a time.

``onnx_ir.save`` without external data holds every weight three times while it serialises (measured: 1.1 GB for
373 MB of weights). A protobuf message is its fields one after the other, so the weights can go straight from the model
to the file: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

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
