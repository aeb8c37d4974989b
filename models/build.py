"""From a configuration to a model."""

from __future__ import annotations

from typing import Any

from ..transformer import MyTransformer
from .classification import ClassificationModel
from .config import ModelConfig
from .sequence import CoupletModel, TranslationModel

Model = MyTransformer | TranslationModel | CoupletModel | ClassificationModel


def build_model(config: ModelConfig) -> Model:
    """A new model as ``config`` says, with initial weights, in training mode."""
    if config.kind == "transformer":
        return MyTransformer.from_config(config.transformer)
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
        return ModelConfig("transformer", model.config)
    return model.config
