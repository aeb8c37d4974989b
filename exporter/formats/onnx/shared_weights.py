"""``weights.bin``: the weights of all ONNX files of a folder, each once. No torch here.

The file begins with eight bytes, the length of an index as a little-endian number, then the index in JSON::

    {"encoder.norm.weight": {"dtype": "float32", "shape": [512], "offset": 4096, "bytes": 2048, "sha256": "…"}, …}

and then the values, little-endian. Names with equal bits share them. ONNX files refer to a place by its offset and
length (external data), so runtimes map the file and need no index; it is for whoever writes files, and for people.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ...cases.case import Array
from ...errors import BundleError, OptionError
from ..table import FORMATS

WEIGHTS = FORMATS["onnx"].weights
MODES = ("auto", "inline", "shared")
AUTO_LIMIT = 16 * 2**20  # bytes: up to here one file for each graph is more convenient, and costs little
INLINE_LIMIT = 1_800_000_000  # bytes: a protobuf message, and so a file, cannot exceed 2 GB
SMALLEST = 1024  # bytes: what is smaller stays in each file, as is usual in ONNX
PAGE = 4096  # runtimes map files by pages
LINE = 64  # what is smaller than a page only has to begin on a line of the cache


@dataclass(frozen=True)
class Place:
    """Where in ``weights.bin`` the values of a tensor are, in bytes."""

    offset: int
    length: int


def shares(mode: str, graphs: Mapping[str, Mapping[str, Array]]) -> bool:
    """Whether the weights of ``graphs`` go into one file.

    Args:
        mode: one of :data:`MODES`; ``auto`` shares more than :data:`AUTO_LIMIT`.
        graphs: the weights of each graph that becomes an ONNX file.

    Raises:
        OptionError: for another mode, and where a file with its weights inside would be larger than protobuf allows.
    """
    if mode not in MODES:
        raise OptionError(f"there is no way {mode!r} to store weights", f"choose from {', '.join(MODES)}")
    sizes = {name: sum(array.nbytes for array in weights.values()) for name, weights in graphs.items()}
    if mode == "inline":
        largest = max(sizes, key=sizes.__getitem__, default="")
        if largest and sizes[largest] > INLINE_LIMIT:
            raise OptionError(
                f"{largest}.onnx would hold {sizes[largest] / 1e9:.1f} GB of weights, a file of ONNX at most 2 GB",
                "leave out --weights inline: larger ones share weights.bin",
            )
        return False
    # Names that are tied have one memory.
    unique = {array.ctypes.data: array.nbytes for weights in graphs.values() for array in weights.values()}
    return mode == "shared" or sum(unique.values()) > AUTO_LIMIT


def write_weights(folder: Path, graphs: Mapping[str, Mapping[str, Array]], name: str = WEIGHTS) -> None:
    """Write the file ``name`` to ``folder``, with the weights of all ``graphs``: the same bytes for the same weights.

    Raises:
        OSError: where it cannot be written.
    """
    everything = {key: array for weights in graphs.values() for key, array in weights.items()}
    arrays = {key: array for key, array in everything.items() if array.nbytes >= SMALLEST}
    digests = {key: _sha256(array) for key, array in arrays.items()}
    start = 0  # of the values. They stand behind the index, whose length depends on the offsets in it.
    while True:
        index = _layout(arrays, digests, start)
        text = json.dumps(index, separators=(",", ":")).encode()
        if 8 + len(text) <= start:
            break
        start = _aligned(8 + len(text), PAGE)
    with (folder / name).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for key, array in arrays.items():
            if index[key]["offset"] >= file.tell():  # otherwise those of an equal one
                file.write(bytes(index[key]["offset"] - file.tell()))
                file.write(_bytes(array))


class SharedWeights:
    """``weights.bin`` in a folder, to be referred to by the files beside it.

    Attributes:
        path: of the file.
        index: what it says of itself, by state-dict name.

    Raises:
        OSError: where it cannot be read.
        BundleError: where it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            length, size = int.from_bytes(file.read(8), "little"), path.stat().st_size
            try:
                self.index: dict[str, dict[str, Any]] = json.loads(file.read(min(length, size)))
                places = {entry["sha256"]: Place(entry["offset"], entry["bytes"]) for entry in self.index.values()}
                whole = all(place.offset >= 0 <= place.length <= size - place.offset for place in places.values())
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise BundleError(f"{path} is damaged: it has no index", "export the bundle again") from error
        if not whole:
            raise BundleError(f"{path} is damaged: it is too short for its index", "export the bundle again")
        self._by_content = places
        self._sizes = {place.length for place in self._by_content.values()}

    @classmethod
    def beside(cls, path: Path, name: str = WEIGHTS) -> SharedWeights | None:
        """The weights that the file at ``path`` shares, or None where there is no ``name`` beside it. Raises as the
        class.
        """
        weights = path.with_name(name)
        return cls(weights) if weights.is_file() else None

    def find(self, tensor: ir.TensorProtocol) -> Place | None:
        """The place that holds the values of ``tensor`` bit for bit, under whatever name; None where there is none."""
        if tensor.nbytes not in self._sizes:
            return None
        if isinstance(tensor, ir.ExternalTensor) and Path(tensor.path) == self.path:  # of a file that was read here
            return Place(tensor.offset or 0, tensor.nbytes)
        return self._by_content.get(_sha256(tensor.numpy()))


def _layout(arrays: Mapping[str, Array], digests: Mapping[str, str], start: int) -> dict[str, dict[str, Any]]:
    """The index, with the first values at or behind ``start``."""
    places: dict[str, int] = {}
    index: dict[str, dict[str, Any]] = {}
    end = start
    for name, array in arrays.items():
        digest = digests[name]
        if digest not in places:
            places[digest] = _aligned(end, PAGE if array.nbytes >= PAGE else LINE)
            end = places[digest] + array.nbytes
        index[name] = {
            "dtype": str(array.dtype),
            "shape": list(array.shape),
            "offset": places[digest],
            "bytes": array.nbytes,
            "sha256": digest,
        }
    return index


def _aligned(offset: int, step: int) -> int:
    return -(-offset // step) * step


def _bytes(array: Array) -> memoryview:
    """The bytes of ``array``, which is not copied where it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _sha256(array: Array) -> str:
    return hashlib.sha256(_bytes(array)).hexdigest()
