"""What the values of a tensor are: whether they can be weights, and whether they are finite."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def copy_float32(tensor: Tensor) -> Tensor:
    """A contiguous float32 copy that shares no memory with ``tensor``."""
    return tensor.detach().to(torch.float32, copy=True, memory_format=torch.contiguous_format)


def is_finite(tensor: Tensor) -> bool:
    """Whether no value of ``tensor`` is NaN or infinite; without a copy, unlike ``isfinite().all()``."""
    return tensor.numel() == 0 or all(math.isfinite(extreme) for extreme in torch.aminmax(tensor.detach()))


def unsuited(tensor: Tensor) -> str:
    """What keeps ``tensor`` from being plain weights: its dtype or layout; empty if nothing does."""
    if not tensor.is_floating_point() or tensor.is_quantized:
        return str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    return "meta: it has no values" if tensor.is_meta else ""
