"""What several tests of the command line need: a state dict as a file, and a folder in which nothing may be left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_support import names, save_pt
from exported_models import Exported


@pytest.fixture(scope="module")
def checkpoint(couplet: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state dict of a couplet model."""
    return save_pt(couplet, tmp_path_factory.mktemp("couplet") / "model.pt")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder for the output, where nothing may be left."""
    place = tmp_path / "place"
    place.mkdir()
    yield place
    assert names(place) == []
