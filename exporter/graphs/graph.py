"""A graph of a model that is to be exported: its contract, and the module that computes it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from ..contracts.contract import PADDING_MEANING, Axis, Contract, TensorSpec
from .modules import GraphModule
from .parameters import named_tensors

# Lengths at export: at least 2 and different, or torch.export takes one for another or for a constant.
BATCH = Axis("batch", traced=2)
SOURCE = Axis("source", traced=7)
TARGET = Axis("target", traced=5)


@dataclass(frozen=True)
class Graph:
    """A graph to be exported.

    Attributes:
        contract: what it takes and gives.
        module: computes it, eagerly; takes the inputs by name.
        scopes: the parts of the model whose parameters and buffers it holds, by prefix of their state-dict names.
        more: masks that the module takes as well, for formats in which an input can be left out.
        without: parts of those names that it does not hold all the same.
        scripted: makes what TorchScript is given instead of ``module``: its weights are fused before, not by the graph.
        held: of a model that is not ours the names themselves; no part is left out of such a model.
    """

    contract: Contract
    module: GraphModule
    scopes: tuple[str, ...]
    more: tuple[TensorSpec, ...] = ()
    without: tuple[str, ...] = ()
    scripted: Callable[[], nn.Module] | None = None
    held: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The graph's name."""
        return self.contract.graph

    @property
    def flexible(self) -> Contract:
        """The contract where every mask can be left out, in the order of the module's arguments."""
        specs = {spec.name: spec for spec in [*self.contract.inputs, *self.more]}
        names = [name for name in inspect.signature(self.module.forward).parameters if name in specs]
        masks = ("padding", "attention")
        inputs = tuple(replace(specs[name], optional=specs[name].role in masks) for name in names)
        return replace(self.contract, inputs=inputs)

    def weights(self) -> dict[str, Tensor]:
        """The parameters and buffers that the graph holds, by state-dict name."""
        model = self.module.model
        if self.held:  # buffers that are not saved are in a file all the same
            return {name: tensor.detach() for name, tensor in named_tensors(model).items() if name in self.held}
        return {
            name: tensor
            for name, tensor in model.state_dict().items()
            if name.startswith(self.scopes) and not any(part in name for part in self.without)
        }

    def compute(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """The outputs in the contract's order, for a tensor for each input; those that can be left out may miss."""
        output = self.module(**self.module.arguments(inputs))
        return (output,) if isinstance(output, Tensor) else tuple(output)


def ids_spec(name: str, axes: tuple[Axis | int, ...], limit: int, **more: object) -> TensorSpec:
    """Ids below ``limit``."""
    return replace(TensorSpec(name, "int64", axes, f"ids, 0 to {limit - 1}", "ids", limit), **more)  # type: ignore[arg-type]


def padding_spec(name: str, axes: tuple[Axis | int, ...], dtype: str = "bool") -> TensorSpec:
    """A padding mask."""
    return TensorSpec(name, dtype, axes, PADDING_MEANING[dtype], "padding")
