"""The files of the tests in this folder."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torch_files import TorchFiles, files_in


@pytest.fixture(scope="session")
def files() -> Callable[[str], TorchFiles]:
    """The files of a kind of model, exported when they are first asked for."""
    return files_in("pt2")


@pytest.fixture
def honest(files: Callable[[str], TorchFiles]) -> TorchFiles:
    """The files of the translation model, as they are exported."""
    return files("translation")
