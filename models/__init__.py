"""Task models on top of the transformer, search, presets, vocabularies and checkpoints.

Modules are imported when one of their names is used first, so that the vocabulary works without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .build import Model as Model
    from .build import build_model as build_model
    from .build import config_of as config_of
    from .cached import CachedDecoder as CachedDecoder
    from .checkpoints.description import CheckpointDescription as CheckpointDescription
    from .checkpoints.description import describe_checkpoint as describe_checkpoint
    from .checkpoints.folder import load_model as load_model
    from .checkpoints.folder import save_model as save_model
    from .checkpoints.load import load_checkpoint as load_checkpoint
    from .classification import ClassificationModel as ClassificationModel
    from .config import Assumption as Assumption
    from .config import ModelConfig as ModelConfig
    from .demo_files import demo_folder as demo_folder
    from .errors import CheckpointError as CheckpointError
    from .errors import MytxError as MytxError
    from .presets import PRESETS as PRESETS
    from .presets import build_preset as build_preset
    from .search import Generator as Generator
    from .sequence import CoupletModel as CoupletModel
    from .sequence import TranslationModel as TranslationModel
    from .vocab import Vocabulary as Vocabulary
    from .vocab import find_vocab as find_vocab

_HOME = {
    "Assumption": "config",
    "CachedDecoder": "cached",
    "CheckpointDescription": "checkpoints.description",
    "CheckpointError": "errors",
    "ClassificationModel": "classification",
    "CoupletModel": "sequence",
    "Generator": "search",
    "Model": "build",
    "ModelConfig": "config",
    "MytxError": "errors",
    "PRESETS": "presets",
    "TranslationModel": "sequence",
    "Vocabulary": "vocab",
    "build_model": "build",
    "build_preset": "presets",
    "config_of": "build",
    "demo_folder": "demo_files",
    "describe_checkpoint": "checkpoints.description",
    "find_vocab": "vocab",
    "load_checkpoint": "checkpoints.load",
    "load_model": "checkpoints.folder",
    "save_model": "checkpoints.folder",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
