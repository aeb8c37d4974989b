"""While a runtime has the weights in memory, the model need not: it reads them from ``weights.bin``, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ..cases.case import Array
from ..formats.onnx.shared_weights import WEIGHTS, SharedWeights
from ..graphs.precision import memory_of


@contextmanager
def lent(model: nn.Module, folder: Path) -> Iterator[None]:
    """Within the block the weights of ``model`` that ``weights.bin`` in ``folder`` holds, bit for bit, are mapped from
    it, and their memory is free; afterwards they are in memory as before. Without such a file nothing happens.

    The mapping is the model's own: what is written to a weight meanwhile is not written to the file.

    Raises:
        OSError: where the file cannot be read.
        BundleError: where it is damaged.
    """
    shared = SharedWeights.beside(folder / WEIGHTS)
    if shared is None:
        yield
        return
    mapped = torch.from_numpy(np.memmap(shared.path, np.uint8, mode="c"))
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    given: dict[str, Tensor] = {}
    places = {name: memory_of(tensor) for name, tensor in tensors.items()}
    try:
        for name, tensor in tensors.items():
            entry = shared.index.get(name)
            if entry is None or tensor.nbytes != entry["bytes"] or not tensor.is_contiguous():
                continue
            place = slice(entry["offset"], entry["offset"] + entry["bytes"])
            # Read, not mapped: pages that were looked at would stay in memory.
            if np.array_equal(
                _bits(tensor), np.fromfile(shared.path, np.uint8, place.stop - place.start, offset=place.start)
            ):
                tensor.data = given[name] = mapped[place].view(tensor.dtype).view(tensor.shape)
        yield
    finally:
        own: dict[tuple[object, ...], Tensor] = {}  # those that shared their memory share it again
        for name, values in given.items():
            if tensors[name].data_ptr() == values.data_ptr():  # not converted to float64 and back meanwhile
                if places[name] not in own:
                    own[places[name]] = values.clone()
                tensors[name].data = own[places[name]]


def _bits(tensor: Tensor) -> Array:
    """So that NaN equals itself, and 0 is not -0."""
    return tensor.detach().numpy().reshape(-1).view(np.uint8)
