"""A state dict in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from checkpoint_support import Save
from layout_writers import State


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Writes a state dict to a file."""

    def write(state: State) -> Path:
        torch.save(state, tmp_path / "model.pt")
        return tmp_path / "model.pt"

    return write
