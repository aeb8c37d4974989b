"""Builds a model from its configuration."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..transformer import MyTransformer
from .classification import ClassificationModel
from .config import Assumption, ModelConfig
from .sequence import CoupletModel, TranslationModel

Model = MyTransformer | TranslationModel | CoupletModel | ClassificationModel

#: Attribute of a bare ``MyTransformer`` with its assumptions: its own configuration has no place for them.
ASSUMED = "assumed"


def build_model(config: ModelConfig) -> Model:
    """A new model of this configuration, with initial weights, in training mode."""
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
    """The configuration of ``model``; :func:`build_model` builds a model from it."""
    if isinstance(model, MyTransformer):
        return ModelConfig("transformer", model.config, assumed=model.__dict__.get(ASSUMED, ()))
    return model.config


def assume(model: Model, assumed: tuple[Assumption, ...]) -> None:
    """Put assumptions into the configuration of ``model``."""
    if isinstance(model, MyTransformer):
        model.__dict__[ASSUMED] = assumed
    else:
        model.config = model.config.with_assumed(assumed)


def empty_model(config: ModelConfig) -> Model:
    """A model of this configuration on the meta device: it has names and shapes, but no values, and needs no memory."""
    with torch.device("meta"):
        return build_model(config)


def fill_model(model: Model, state: dict[str, Tensor]) -> Model:
    """Put the tensors of ``state``, without a copy, into an :func:`empty_model`; returns it in evaluation mode.

    An empty model has no values, so no parameter can keep an initial value.

    Raises:
        RuntimeError: if names or shapes do not fit.
    """
    model.load_state_dict(state, assign=True)
    return model.eval()
