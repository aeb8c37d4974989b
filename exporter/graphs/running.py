"""Running a user's own model, so that neither the model nor its inputs are changed afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules import transformer as torch_transformer

from ..cases.case import Array
from ..errors import OptionError, first_line
from .graph import Graph
from .precision import default_dtype_of
from .user_code import users_code


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside the block, ``model`` is in evaluation mode; afterwards each module is in its old mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[Callable[[], str]]:
    """Restores the buffers of ``model`` after the block.

    Yields:
        A function that returns the name of a buffer that has changed, or an empty string.
    """
    before = {name: (tensor, tensor.detach().clone()) for name, tensor in model.named_buffers()}

    def changed() -> str:
        return next((name for name, (tensor, old) in before.items() if not same(tensor, old)), "")

    try:
        yield changed
    finally:
        for tensor, old in before.values():
            tensor.data.copy_(old)


@contextmanager
def plain_torch() -> Iterator[None]:
    """Inside the block, ``torch.nn.Transformer`` uses no fused kernels, which cannot be exported, and does not look
    whether a mask is causal, which cannot be traced. Masks are still applied.
    """
    fast, detect = torch.backends.mha.get_fastpath_enabled(), torch_transformer._detect_is_causal_mask

    def trust_caller(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        return bool(is_causal)

    torch.backends.mha.set_fastpath_enabled(False)
    torch_transformer._detect_is_causal_mask = trust_caller
    try:
        with users_code():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch_transformer._detect_is_causal_mask = detect


def run_model(
    graph: Graph, inputs: Mapping[str, Array], prepare: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> tuple[Tensor, ...]:
    """The outputs of a graph of a user's own model. The model gets copies of the inputs.

    Args:
        graph: the graph; its model may be in float64.
        inputs: arrays by name.
        prepare: applied to the inputs with floats.

    Raises:
        OptionError: if the model raises an error.
    """
    tensors = _tensors({name: array.copy() for name, array in inputs.items()}, prepare)
    exact = any(tensor.dtype == torch.float64 for tensor in graph.module.model.parameters())
    try:
        with torch.inference_mode(), default_dtype_of(graph.module.model):
            outputs = graph.compute(tensors)
            # If an output is a weight itself, it requires a gradient, and numpy() would fail.
            return tuple(value.detach() if isinstance(value, Tensor) else value for value in outputs)
    except (Exception, SystemExit) as error:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
        raise OptionError(
            f"graph {graph.name}: the model fails{' in float64' if exact else ''} on {shapes}: {first_line(error)}",
            "does it create tensors with a fixed dtype, with .float() for example?"
            if exact
            else "correct the dimensions in the contract, or give the longest lengths with longest=; -v shows details",
        ) from error


def run_graph(
    graph: Graph, inputs: Mapping[str, Array], prepare: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> tuple[Tensor, ...]:
    """The outputs of a graph of any model; arguments as for :func:`run_model`."""
    if graph.contract.custom:
        return run_model(graph, inputs, prepare)
    with torch.inference_mode():
        return graph.compute(_tensors(inputs, prepare))


def _tensors(inputs: Mapping[str, Array], prepare: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    return {name: prepare(tensor) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape and equal values; NaN equals NaN."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
