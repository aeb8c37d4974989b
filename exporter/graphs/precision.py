"""A model in float64 for a while, and what it makes meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@contextmanager
def in_float64(model: nn.Module) -> Iterator[None]:
    """Within the block the weights and buffers of ``model`` are in float64, afterwards in float32 again: both exact.

    Unlike ``model.double()`` and back it never needs much more memory than for the weights in float64, also where one
    of them is much of the model: that one is converted while the others are small. Those that share their memory do so
    in the block and afterwards.
    """
    every: dict[tuple[object, ...], list[Tensor]] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            every.setdefault(memory_of(tensor), []).append(tensor)
    tensors = sorted(every.values(), key=lambda same: same[0].numel(), reverse=True)

    def convert(same: list[Tensor], dtype: torch.dtype) -> None:
        data = same[0].data.to(dtype)
        for tensor in same:
            tensor.data = data

    try:
        for same in tensors:
            convert(same, torch.float64)
        yield
    finally:
        for same in reversed(tensors):
            convert(same, torch.float32)


def memory_of(tensor: Tensor) -> tuple[object, ...]:
    """Equal for tensors that are the same values in the same memory."""
    return (tensor.data_ptr() if tensor.numel() else id(tensor), tensor.shape, tensor.stride())


@contextmanager
def made_alike(model: nn.Module) -> Iterator[None]:
    """Within the block the tensors that ``model`` makes without a dtype, masks say, are in the dtype of its weights."""
    dtype = next(
        (tensor.dtype for tensor in [*model.parameters(), *model.buffers()] if tensor.is_floating_point()), None
    )
    before = torch.get_default_dtype()
    if dtype not in (torch.float32, torch.float64):
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        with _MasksAlike():
            yield
    finally:
        torch.set_default_dtype(before)


class _MasksAlike(TorchFunctionMode):
    """Attention masks in the dtype of the query. PyTorch 2.13 computes nonsense, without an error, where a float32 mask
    meets a float64 query of 16 positions or more.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
            if isinstance(mask, Tensor) and mask.is_floating_point() and mask.dtype != args[0].dtype:
                mask = mask.to(args[0].dtype)
                args, kwargs = (*args[:3], mask, *args[4:]), {k: v for k, v in kwargs.items() if k != "attn_mask"}
        return func(*args, **kwargs)
