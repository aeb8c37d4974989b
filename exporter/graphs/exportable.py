"""A model that can be exported: one of :mod:`mytx.models` or a user's own, with its graphs and its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from ...models import Model, config_of, save_model
from ..contracts.contract import CUSTOM_KIND, Contract
from ..contracts.declare import CustomGraph
from ..errors import OptionError
from .graph import Graph
from .model_graphs import graphs_of
from .running import plain_torch
from .user_model import custom_graphs


@dataclass(frozen=True)
class Exportable:
    """A model that can be exported.

    Attributes:
        model: the model, in float32.
        graphs: all its graphs, by name.
        config: the content of ``config.json``; ``kind`` is the kind of model.
        assumed: settings that neither the checkpoint nor the user gave, for the report.
        custom: whether it is a user's own model. Any other can be built again from ``config``.
    """

    model: nn.Module
    graphs: dict[str, Graph]
    config: dict[str, Any]
    assumed: tuple[dict[str, Any], ...] = field(default=())
    custom: bool = False

    def save(self, folder: Path) -> None:
        """Write the weights to ``folder``, and the configuration of a model of :mod:`mytx.models`.

        Raises:
            ValueError: for weights that are not finite, by :func:`mytx.models.save_model`.
        """
        if isinstance(self.model, Model):
            save_model(self.model, folder)
            return
        folder.mkdir()
        state = {name: tensor.clone().contiguous() for name, tensor in self.model.state_dict().items()}
        save_file(state, str(folder / "model.safetensors"))

    def tracing(self) -> AbstractContextManager[None]:
        """The context in which the model must be run and exported."""
        return plain_torch() if self.custom else nullcontext()


def as_exportable(model: object, masks: str | None = None) -> Exportable:
    """``model`` as an :class:`Exportable`.

    Args:
        model: a float32 model of :mod:`mytx.models`, a bare ``MyTransformer``, or the result of :func:`custom_model`.
        masks: for a bare model, as in :func:`~.model_graphs.graphs_of`.

    Raises:
        OptionError: for anything else.
    """
    if isinstance(model, Exportable):
        if masks is not None:
            raise OptionError("--masks is for a bare MyTransformer", "leave it out: the contract has the masks")
        return model
    if not isinstance(model, Model):
        raise OptionError(
            f"a {type(model).__name__} is none of the models that are known",
            "save its state dict and read it with load_checkpoint, or write contracts: custom_model(model, graphs)",
        )
    dtypes = {str(parameter.dtype) for parameter in model.parameters()} - {"torch.float32"}
    if dtypes:
        raise OptionError(f"the model has weights in {', '.join(sorted(dtypes))}", "call model.float() first")
    config = config_of(model)
    return Exportable(model, graphs_of(model, masks), config.to_dict(), tuple(asdict(item) for item in config.assumed))


def custom_model(model: nn.Module, graphs: Sequence[CustomGraph], *, source: str = "") -> Exportable:
    """Your own model, with contracts made by :func:`mytx.exporter.contracts.graph`, for ``export_bundle``.

    Args:
        model: a model in float32 and evaluation mode.
        graphs: the graphs to export.
        source: ``package.module:build``; it is written to ``config.json`` only.

    Raises:
        OptionError: if a contract does not fit the model.
    """
    methods = {item.contract.graph: item.method for item in graphs}
    config = {"kind": CUSTOM_KIND, "class": type(model).__name__, "source": source, "methods": methods}
    return Exportable(model, custom_graphs(model, graphs), config, custom=True)


def restore_custom_model(model: nn.Module, config: dict[str, Any], contracts: Sequence[Contract]) -> Exportable:
    """The result of :func:`custom_model` again, from the configuration and the contracts in a bundle.

    Raises:
        LookupError: if these two do not fit each other.
        OptionError: if a contract does not fit the model.
    """
    methods = config["methods"]
    graphs = custom_graphs(model, [CustomGraph(item, methods[item.graph]) for item in contracts])
    return Exportable(model, graphs, config, custom=True)
