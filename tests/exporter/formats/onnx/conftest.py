"""A bundle whose files share their weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from bundles import copy_of_bundle, shared_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A copy to do as one likes with."""
    return copy_of_bundle(tmp_path, shared_bundle())
