"""What the values of tensors are: whether they can be weights, and whether they are finite in float32."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# What to do about bad weights.
SAVE = "weights are float16, bfloat16, float32 or float64: save them before quantisation"
DIVERGED = "the training diverged, the file is damaged, or float32 cannot hold the values: take an earlier checkpoint"


@dataclass(frozen=True)
class BadWeight:
    """A tensor of a checkpoint that is a weight and cannot be one: an export refuses it.

    Attributes:
        tensor: its name in the checkpoint.
        shape: its sizes.
        dtype: its dtype: ``float32``.
        values: number of values.
        nan: number of values that are NaN.
        infinite: number of values that are infinite.
        too_large: number of finite values that float32 cannot hold.
        reason: the same in words: ``3 NaN, 1 infinite of 384 values``.
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
    """Those of ``weights``, by their names, that are not plain floats or have values that float32 cannot hold."""
    return [bad for name, tensor in weights.items() if (bad := bad_weight(name, tensor)) is not None]


def bad_weight(name: str, tensor: Tensor) -> BadWeight | None:
    """What makes ``tensor`` a bad weight; None if nothing does."""
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
    """Whether no value of ``tensor`` is NaN or infinite; without a copy, unlike ``isfinite().all()``."""
    return tensor.numel() == 0 or all(math.isfinite(extreme) for extreme in torch.aminmax(tensor.detach()))


def unsuited(tensor: Tensor) -> str:
    """What keeps ``tensor`` from being plain weights, its dtype or layout; empty if nothing does."""
    if not tensor.is_floating_point() or tensor.is_quantized:
        return str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    return "meta: it has no values" if tensor.is_meta else ""
