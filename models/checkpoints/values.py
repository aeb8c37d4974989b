"""Checks of the values of tensors: whether they can be weights, and whether float32 can hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# Hints for bad weights.
SAVE = "weights are float16, bfloat16, float32 or float64: save them before quantisation"
DIVERGED = "the training diverged, the file is damaged, or float32 cannot hold the values: take an earlier checkpoint"


@dataclass(frozen=True)
class BadWeight:
    """A weight that an export refuses: it is not a tensor of plain floats, or has values that float32 cannot hold.

    Attributes:
        tensor: its name in the checkpoint.
        shape: its shape.
        dtype: its dtype, such as ``float32``.
        values: number of values.
        nan: number of values that are NaN.
        infinite: number of values that are infinite.
        too_large: number of finite values that float32 cannot hold.
        reason: what is wrong, in words: ``3 NaN, 1 infinite of 384 values``.
        hint: the next step.
    """

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    values: int
    nan: int
    infinite: int
    too_large: int
    reason: str
    hint: str


def bad_weights(weights: Mapping[str, Tensor]) -> list[BadWeight]:
    """The bad weights among ``weights``, which are given by name."""
    return [bad for name, tensor in weights.items() if (bad := bad_weight(name, tensor)) is not None]


def bad_weight(name: str, tensor: Tensor) -> BadWeight | None:
    """The description of ``tensor`` if it is a bad weight; otherwise None."""
    shape, dtype, values = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.numel()
    if what := unsuited(tensor):
        reason = f"{values:,} values that are not plain floats: {what}"
        return BadWeight(name, shape, dtype, values, nan=0, infinite=0, too_large=0, reason=reason, hint=SAVE)
    single = tensor.detach().to(torch.float32)
    if is_finite(single):
        return None
    nan = int(single.isnan().sum())
    infinite = int((tensor if tensor.dtype == torch.float64 else single).isinf().sum())
    too_large = int(single.isinf().sum()) - infinite
    counts = {"NaN": nan, "infinite": infinite, "too large for float32": too_large}
    reason = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count) + f" of {values:,} values"
    return BadWeight(name, shape, dtype, values, nan, infinite, too_large, reason, DIVERGED)


def copy_float32(tensor: Tensor) -> Tensor:
    """A contiguous float32 copy that shares no memory with ``tensor``."""
    return tensor.detach().to(torch.float32, copy=True, memory_format=torch.contiguous_format)


def is_finite(tensor: Tensor) -> bool:
    """Whether no value of ``tensor`` is NaN or infinite. Needs no copy, unlike ``isfinite().all()``."""
    return tensor.numel() == 0 or all(math.isfinite(extreme) for extreme in torch.aminmax(tensor.detach()))


def unsuited(tensor: Tensor) -> str:
    """The dtype or layout of ``tensor`` if weights cannot have it; otherwise empty."""
    if not tensor.is_floating_point() or tensor.is_quantized:
        return str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    return "meta: it has no values" if tensor.is_meta else ""
