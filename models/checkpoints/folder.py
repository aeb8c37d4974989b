"""Writes and reads a model as a folder with ``model.safetensors`` and ``config.json``."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from ..build import Model, config_of, empty_model, fill_model
from ..config import ModelConfig
from ..errors import CheckpointError
from .files import read_safetensors
from .ledger import Ledger, check_complete, to_float32
from .values import is_finite

WEIGHTS = "model.safetensors"
CONFIG = "config.json"


def save_model(model: Model, folder: str | Path, *, dtype: torch.dtype | None = None) -> None:
    """Write ``model`` to ``folder`` for :func:`load_model`.

    Args:
        model: a task model or a bare ``MyTransformer``.
        folder: folder to write to; it is created if it does not exist.
        dtype: dtype of the weights in the file, for example ``torch.float16``; None keeps that of the model.

    Raises:
        OSError: if the folder cannot be written.
        ValueError: if a weight is not finite, or does not fit into ``dtype``.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Copies: safetensors does not write tensors that share memory.
    tensors = {
        name: tensor.to(dtype or tensor.dtype, copy=True, memory_format=torch.contiguous_format)
        for name, tensor in model.state_dict().items()
    }
    for name, tensor in tensors.items():
        if not is_finite(tensor):
            raise ValueError(f"{name} has values that are not finite in {tensor.dtype}")
    save_file(tensors, str(folder / WEIGHTS))
    (folder / WEIGHTS).chmod(0o644)  # safetensors gives access to the owner only, but models are shared
    (folder / CONFIG).write_text(json.dumps(config_of(model).to_dict(), indent=2) + "\n")


def load_model(folder: str | Path) -> Model:
    """The model that :func:`save_model` wrote, in float32, on the CPU and in evaluation mode.

    Raises:
        CheckpointError: if a file is missing or damaged, or the weights do not fit the configuration.
    """
    folder = Path(folder)
    config = read_config(folder / CONFIG)
    path = folder / WEIGHTS
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {WEIGHTS}", "save_model(model, folder) writes one")
    tensors = read_safetensors(path)
    ledger = Ledger({}, placed=tensors, origins={name: name for name in tensors})
    model = empty_model(config)
    try:
        check_complete(ledger, model.state_dict())
        return fill_model(model, to_float32(ledger))
    except CheckpointError as error:
        raise CheckpointError(f"{path} does not fit {CONFIG}: {error.message}", "save the model again") from error


def read_config(path: Path) -> ModelConfig:
    """The configuration in ``path``.

    Raises:
        CheckpointError: if it is missing or not a configuration.
    """
    try:
        return ModelConfig.from_dict(json.loads(path.read_text()))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path.parent} has no {path.name}", "is it a folder that save_model wrote?") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not a model configuration: {error}") from error
