"""A graph: its contract, and the module that computes it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from torch import Tensor, nn

from ..contracts.contract import PADDING_MEANING, Axis, Contract, TensorSpec
from .modules import GraphModule
from .parameters import multiplied, named_tensors

# Lengths at export: 2 or more, and all different, or torch.export makes them constants or merges them.
BATCH = Axis("batch", traced=2)
SOURCE = Axis("source", traced=7)
TARGET = Axis("target", traced=5)


@dataclass(frozen=True)
class Graph:
    """A graph of a model.

    Attributes:
        contract: the inputs and outputs.
        module: computes the graph eagerly; takes the inputs by name.
        scopes: prefixes of the state-dict names of the weights (parameters and buffers) in the graph's file.
        more: masks that only formats with optional inputs take, besides those in the contract.
        without: a weight in ``scopes`` with one of these parts in its name is not in the file.
        scripted: makes the module that TorchScript gets instead of ``module``. It fuses weights once, before scripting.
        held: names of the weights in the file, for a user's own model; it replaces ``scopes`` and ``without``.
        within: the context in which the module runs.
    """

    contract: Contract
    module: GraphModule
    scopes: tuple[str, ...]
    more: tuple[TensorSpec, ...] = ()
    without: tuple[str, ...] = ()
    scripted: Callable[[], nn.Module] | None = None
    held: frozenset[str] = frozenset()
    within: Callable[[], AbstractContextManager[object]] = nullcontext

    @property
    def name(self) -> str:
        """The graph's name."""
        return self.contract.graph

    @property
    def flexible(self) -> Contract:
        """The contract in which every mask is optional; inputs are in the order of the module's arguments."""
        specs = {spec.name: spec for spec in [*self.contract.inputs, *self.more]}
        names = [name for name in inspect.signature(self.module.forward).parameters if name in specs]
        masks = ("padding", "attention")
        inputs = tuple(replace(specs[name], optional=specs[name].role in masks) for name in names)
        return replace(self.contract, inputs=inputs)

    def weights(self) -> dict[str, Tensor]:
        """The parameters and buffers in the graph's file, by state-dict name."""
        model = self.module.model
        if self.held:  # may be a buffer that is not in the state dict: files contain those too
            return {name: tensor.detach() for name, tensor in named_tensors(model).items() if name in self.held}
        return {
            name: tensor
            for name, tensor in model.state_dict().items()
            if name.startswith(self.scopes) and not any(part in name for part in self.without)
        }

    def looked_up(self) -> frozenset[str]:
        """The names of the model's weights that are in no product: tables of embeddings and positions, and vectors."""
        return frozenset(named_tensors(self.module.model)) - multiplied(self.module.model)

    def compute(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """The outputs in the contract's order.

        Args:
            inputs: a tensor for each input by name; optional ones may be missing.
        """
        with self.within():
            output = self.module(**self.module.arguments(inputs))
        return (output,) if isinstance(output, Tensor) else tuple(output)


def ids_spec(name: str, axes: tuple[Axis | int, ...], limit: int, **more: object) -> TensorSpec:
    """A tensor of ids, 0 to ``limit - 1``."""
    return replace(TensorSpec(name, "int64", axes, f"ids, 0 to {limit - 1}", "ids", limit), **more)  # type: ignore[arg-type]


def padding_spec(name: str, axes: tuple[Axis | int, ...], dtype: str = "bool") -> TensorSpec:
    """A padding mask, ``bool`` or ``float32``."""
    return TensorSpec(name, dtype, axes, PADDING_MEANING[dtype], "padding")
