"""Writing checkpoints, loading them, and the errors of those that do not load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from layout_writers import State, outputs
from mytx.models import CheckpointError, config_of, load_checkpoint


def refused(path: Path, message: str, **options: Any) -> CheckpointError:
    """The error for ``path``, which must match ``message``, be short and name a next step."""
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(path, **{"nhead": 4, **options})
    error = caught.value
    assert error.hint
    assert "\n" not in error.message + error.hint
    assert len(error.message) < 400 + len(str(path))
    return error


def changed(make: Callable[[], Any], change: Callable[[State], Any], path: Path) -> Path:
    state = dict(make().state_dict())
    change(state)
    torch.save(state, path)
    return path


def saved(state: Any, path: Path) -> Path:
    """``state`` in a file of the kind that the suffix of ``path`` says."""
    if path.suffix == ".safetensors":
        save_file({name: tensor.clone() for name, tensor in state.items()}, path)
    else:
        torch.save(state, path)
    return path


def assert_same(loaded: Any, model: Any) -> None:
    assert type(loaded) is type(model)
    assert not loaded.training
    expected = model.state_dict()
    assert list(loaded.state_dict()) == list(expected)
    for name, tensor in loaded.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[name]), name
    assert torch.equal(outputs(loaded), outputs(model))
    config = config_of(loaded)
    assert config.transformer == config_of(model).transformer
    assert config.with_assumed(()) == config_of(model).with_assumed(())


Save = Callable[[State], Path]


def same_weights(loaded: Any, model: Any) -> bool:
    expected = model.state_dict()
    found = loaded.state_dict()
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
