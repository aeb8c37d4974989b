"""From a configuration to a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..transformer import MyTransformer
from .classification import ClassificationModel
from .config import Assumption, ModelConfig
from .sequence import CoupletModel, TranslationModel

Model = MyTransformer | TranslationModel | CoupletModel | ClassificationModel

#: Where a bare ``MyTransformer``, whose configuration is the architecture alone, keeps what was assumed about it.
ASSUMED = "assumed"


def build_model(config: ModelConfig) -> Model:
    """A new model as ``config`` says, with initial weights, in training mode."""
    if config.kind == "transformer":
        bare = MyTransformer.from_config(config.transformer)
        assume(bare, config.assumed)
        return bare
    options: dict[str, Any] = config.transformer.to_dict()
    for name in ("max_length", "embedding_scale", "pad_id", "bos_id", "eos_id"):
        options[name] = getattr(config, name)
    model: Model
    if config.kind == "classification":
        del options["num_decoder_layers"]
        for name in ("dim_classification", "num_classification", "pooling"):
            options[name] = getattr(config, name)
        model = ClassificationModel(config.src_vocab_size, **options)
    elif config.kind == "couplet":
        model = CoupletModel(config.src_vocab_size, **options)
    else:
        model = TranslationModel(config.src_vocab_size, config.tgt_vocab_size, **options)
    model.config = config
    return model


def config_of(model: Model) -> ModelConfig:
    """The configuration of ``model``; :func:`build_model` is the way back."""
    if isinstance(model, MyTransformer):
        return ModelConfig("transformer", model.config, assumed=model.__dict__.get(ASSUMED, ()))
    return model.config


def assume(model: Model, assumed: tuple[Assumption, ...]) -> None:
    """Record in the configuration of ``model`` what was ``assumed`` about it."""
    if isinstance(model, MyTransformer):
        model.__dict__[ASSUMED] = assumed
    else:
        model.config = model.config.with_assumed(assumed)


def empty_model(config: ModelConfig) -> Model:
    """The model of ``config`` on the meta device: names and shapes, no values and no memory."""
    with torch.device("meta"):
        return build_model(config)


def fill_model(model: Model, state: dict[str, Tensor]) -> Model:
    """An :func:`empty_model` with the tensors of ``state``, which it takes over, in evaluation mode.

    Since it had no values, nothing can be left at an initial one.

    Raises:
        RuntimeError: where names or shapes do not fit.
    """
    model.load_state_dict(state, assign=True)
    return model.eval()
