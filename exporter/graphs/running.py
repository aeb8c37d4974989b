"""Running a model that is not ours: as it is written, without a trace in it or in what it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules import transformer as torch_transformer

from ..cases.case import Array
from ..errors import OptionError, first_line
from .graph import Graph
from .precision import made_alike
from .user_code import users_code


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; each module's own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[Callable[[], str]]:
    """The buffers as they were, afterwards; gives what tells the name of one that has changed, if any has."""
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
    """``torch.nn.Transformer`` as it is written down: no fused kernels, which cannot be exported, and no look whether a
    mask is causal, which cannot be traced. Masks are applied as they are given all the same.
    """
    fast, detect = torch.backends.mha.get_fastpath_enabled(), torch_transformer._detect_is_causal_mask

    def as_said(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        return bool(is_causal)

    torch.backends.mha.set_fastpath_enabled(False)
    torch_transformer._detect_is_causal_mask = as_said
    try:
        with users_code():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch_transformer._detect_is_causal_mask = detect


def run_model(
    graph: Graph, inputs: Mapping[str, Array], prepare: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> tuple[Tensor, ...]:
    """The outputs of a user's model. What it raises is the user's to mend, and what it writes to is a copy.

    Args:
        graph: of the model, which may be in float64.
        inputs: by name.
        prepare: sees the float inputs.

    Raises:
        OptionError: where it fails.
    """
    tensors = _tensors({name: array.copy() for name, array in inputs.items()}, prepare)
    exact = any(tensor.dtype == torch.float64 for tensor in graph.module.model.parameters())
    try:
        with torch.inference_mode(), made_alike(graph.module.model):
            outputs = graph.compute(tensors)
            # A weight that is handed out as it is would want a gradient.
            return tuple(value.detach() if isinstance(value, Tensor) else value for value in outputs)
    except (Exception, SystemExit) as error:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
        raise OptionError(
            f"graph {graph.name}: the model fails{' in float64' if exact else ''} on {shapes}: {first_line(error)}",
            "does it make tensors of a fixed dtype, .float() say?"
            if exact
            else "mend the dimensions in the contract, or say with longest= what the model can take; -v shows it all",
        ) from error


def run_graph(
    graph: Graph, inputs: Mapping[str, Array], prepare: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> tuple[Tensor, ...]:
    """The outputs of a graph of any model; see :func:`run_model`."""
    if graph.contract.custom:
        return run_model(graph, inputs, prepare)
    with torch.inference_mode():
        return graph.compute(_tensors(inputs, prepare))


def _tensors(inputs: Mapping[str, Array], prepare: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    return {name: prepare(tensor) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, NaN to NaN."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
