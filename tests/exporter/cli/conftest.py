"""What several tests of the command line need: a state dict in a file, a folder that must stay empty, and decoding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bundles import decoding_bundle
from cli_support import Run, names, run_here, save_pt
from decoded_lines import LINES
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


@pytest.fixture
def decode(capfd: pytest.CaptureFixture[str]) -> Run:
    """``mytx-export run`` on a bundle that decodes."""
    return lambda *arguments: run_here(capfd, "run", decoding_bundle(), *arguments, "--max-length", "6")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of 120 lines."""
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where they are decoded to."""
    return tmp_path / "out.txt"
