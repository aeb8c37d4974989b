"""What is exported: one of our models, or one of a user's, with its graphs and what is written about it."""

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
class Subject:
    """A model that can be exported.

    Attributes:
        model: in float32.
        graphs: all that it has, by name.
        config: written to ``config.json``; ``kind`` says what the model is.
        assumed: what nobody said, for the report.
        ours: whether it is one of :mod:`mytx.models`, which can be saved and built again from its configuration.
    """

    model: nn.Module
    graphs: dict[str, Graph]
    config: dict[str, Any]
    assumed: tuple[dict[str, Any], ...] = field(default=())
    ours: bool = True

    def save(self, folder: Path) -> None:
        """Write the model to ``folder``. Raises ``ValueError`` for weights that are not finite."""
        if isinstance(self.model, Model):
            save_model(self.model, folder)
            return
        folder.mkdir()
        state = {name: tensor.clone().contiguous() for name, tensor in self.model.state_dict().items()}
        save_file(state, str(folder / "model.safetensors"))

    def tracing(self) -> AbstractContextManager[None]:
        """What it must be run and exported in."""
        return nullcontext() if self.ours else plain_torch()


def subject_of(model: object, masks: str | None = None) -> Subject:
    """One of our models, in float32.

    Raises:
        OptionError: where it is none.
    """
    if isinstance(model, Subject):
        if masks is not None:
            raise OptionError("--masks is for a bare MyTransformer", "leave it out: the contract has the masks")
        return model
    if not isinstance(model, Model):
        raise OptionError(
            f"a {type(model).__name__} is none of the models that are known",
            "save its state dict, load_checkpoint it; or give contracts: custom_model(model, graphs)",
        )
    dtypes = {str(parameter.dtype) for parameter in model.parameters()} - {"torch.float32"}
    if dtypes:
        raise OptionError(f"the model has weights in {', '.join(sorted(dtypes))}", "call model.float() first")
    config = config_of(model)
    return Subject(model, graphs_of(model, masks), config.to_dict(), tuple(asdict(item) for item in config.assumed))


def custom_model(model: nn.Module, graphs: Sequence[CustomGraph], *, source: str = "") -> Subject:
    """A model of your own, with contracts made by :func:`mytx.exporter.contracts.graph`, for ``export_bundle``.

    Args:
        model: in float32 and evaluation mode.
        graphs: what is to become files.
        source: ``package.module:build``, for the record.

    Raises:
        OptionError: where a contract does not fit.
    """
    methods = {item.contract.graph: item.method for item in graphs}
    config = {"kind": CUSTOM_KIND, "class": type(model).__name__, "source": source, "methods": methods}
    return Subject(model, custom_graphs(model, graphs), config, ours=False)


def subject_again(model: nn.Module, config: dict[str, Any], contracts: Sequence[Contract]) -> Subject:
    """What :func:`custom_model` gave, by the contracts and the configuration in a bundle. ``LookupError`` where these
    do not fit each other.
    """
    methods = config["methods"]
    graphs = custom_graphs(model, [CustomGraph(item, methods[item.graph]) for item in contracts])
    return Subject(model, graphs, config, ours=False)
