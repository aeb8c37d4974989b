"""A model as a folder: ``model.safetensors`` and ``config.json``."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from .build import Model, build_model, config_of
from .config import ModelConfig
from .errors import CheckpointError

WEIGHTS = "model.safetensors"
CONFIG = "config.json"


def save_model(model: Model, folder: str | Path, *, dtype: torch.dtype | None = None) -> None:
    """Write ``model`` to ``folder``, made where it is missing: everything that :func:`load_model` needs.

    Args:
        model: a task model or a bare ``MyTransformer``.
        folder: where to.
        dtype: of the weights in the file, ``torch.float16`` say; None keeps the model's.

    Raises:
        OSError: where the folder cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.to(dtype or tensor.dtype).contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, str(folder / WEIGHTS))
    (folder / CONFIG).write_text(json.dumps(config_of(model).to_dict(), indent=2) + "\n")


def load_model(folder: str | Path) -> Model:
    """The model that :func:`save_model` wrote, in float32, on the CPU and in evaluation mode.

    Raises:
        CheckpointError: where a file is missing or damaged, or the weights do not fit the configuration.
    """
    folder = Path(folder)
    config = read_config(folder / CONFIG)
    path = folder / WEIGHTS
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {WEIGHTS}", "save_model(model, folder) writes one")
    try:
        tensors = load_file(str(path))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}") from error
    model = build_model(config)
    try:
        model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    except RuntimeError as error:
        raise CheckpointError(f"the weights in {path} do not fit {CONFIG}: {' '.join(str(error).split())}") from error
    return model.eval()


def read_config(path: Path) -> ModelConfig:
    """The configuration in ``path``.

    Raises:
        CheckpointError: where it is missing or not a configuration.
    """
    try:
        return ModelConfig.from_dict(json.loads(path.read_text()))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path.parent} has no {path.name}", "is it a folder that save_model wrote?") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not a model configuration: {error}") from error
