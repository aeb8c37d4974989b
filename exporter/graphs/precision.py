"""Context managers that run a model in float64, including the tensors that it creates."""

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
    """Inside the block, parameters and buffers of ``model`` are in float64; afterwards in float32, with equal values.

    It needs little more memory than the weights in float64, even if one weight is most of the model: the largest are
    converted first and converted back last, while all others are in float32. ``model.double()`` needs more. Tensors
    that share memory do so inside the block and afterwards.
    """
    groups: dict[tuple[object, ...], list[Tensor]] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            groups.setdefault(memory_of(tensor), []).append(tensor)
    tensors = sorted(groups.values(), key=lambda same: same[0].numel(), reverse=True)

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
    """A key that is equal for tensors with the same values in the same memory."""
    return (tensor.data_ptr() if tensor.numel() else id(tensor), tensor.shape, tensor.stride())


@contextmanager
def default_dtype_of(model: nn.Module) -> Iterator[None]:
    """Inside the block, tensors that ``model`` creates without a dtype, such as masks, get the dtype of its weights."""
    dtype = next(
        (tensor.dtype for tensor in [*model.parameters(), *model.buffers()] if tensor.is_floating_point()), None
    )
    before = torch.get_default_dtype()
    if dtype not in (torch.float32, torch.float64):
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        with _MasksInQueryDtype():
            yield
    finally:
        torch.set_default_dtype(before)


class _MasksInQueryDtype(TorchFunctionMode):
    """Converts attention masks to the dtype of the query. For a float32 mask and a float64 query of 16 positions or
    more, PyTorch 2.13 gives wrong values without an error.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
            if isinstance(mask, Tensor) and mask.is_floating_point() and mask.dtype != args[0].dtype:
                mask = mask.to(args[0].dtype)
                args, kwargs = (*args[:3], mask, *args[4:]), {k: v for k, v in kwargs.items() if k != "attn_mask"}
        return func(*args, **kwargs)
