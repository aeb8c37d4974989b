"""Prints the shapes of all tensors that go through a model, by hooks: the model needs no flag for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def describe(value: Any) -> str:
    """The shapes of the tensors in ``value``, nested as they are: ``[6, 2, 32]``, ``([6, 2, 32], None)``."""
    if isinstance(value, torch.Tensor):
        return str(list(value.shape))
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(describe(item) for item in value) + ")"
    return str(value)


@contextmanager
def trace_shapes(model: nn.Module, write: Callable[[str], object] = print) -> Iterator[None]:
    """Print the name, class, input shapes, weight shape and output shape of each submodule while the model runs.

    Args:
        model: any module. The hooks are removed at the end of the block, also after an error.
        write: function that takes each line.

    Example:
        >>> with trace_shapes(model):
        ...     model(src, tgt)
    """

    def enter(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            shapes = [describe(arg) for arg in args if isinstance(arg, torch.Tensor)]
            shapes += [f"{key}={describe(arg)}" for key, arg in kwargs.items() if isinstance(arg, torch.Tensor)]
            weight = getattr(module, "weight", None)
            detail = f"  weight {describe(weight)}" if isinstance(weight, torch.Tensor) else ""
            write(f"{'  ' * depth(name)}{name or 'model'} ({type(module).__name__}): {', '.join(shapes)}{detail}")

        return hook

    def leave(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            write(f"{'  ' * depth(name)}{name or 'model'} -> {describe(output)}")

        return hook

    handles = []
    try:
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(enter(name), with_kwargs=True))
            handles.append(module.register_forward_hook(leave(name)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def depth(name: str) -> int:
    """Number of segments in a module path: 0 for the model itself."""
    return len(name.split(".")) if name else 0
