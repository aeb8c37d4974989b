"""Bundles of a few text files, made in a staging folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli_support import names
from mytx.exporter.bundle.manifest import MANIFEST, Manifest, describe_files
from mytx.exporter.bundle.staging import Staging, write_json
from mytx.exporter.errors import BundleError


def fill(folder: Path, words: str) -> None:
    """Make ``folder`` a bundle of two files."""
    (folder / "encoder.onnx").write_text(words)
    (folder / "data").mkdir()
    (folder / "data" / "weights").write_text(words)
    manifest = Manifest(1, {}, {}, describe_files(folder), {}, (), {"passed": True})
    write_json(folder / MANIFEST, manifest.to_dict())


def make(target: Path, words: str = "old", *, force: bool = False) -> Path:
    with Staging(target, force=force) as staging:
        fill(staging.path, words)
        return staging.commit()


def fail(target: Path, error: type[BaseException] = RuntimeError, meanwhile: Callable[[], Any] = lambda: None) -> None:
    """Begin a bundle at ``target``, and fail."""
    with pytest.raises(error):  # noqa: PT012, SIM117
        with Staging(target, force=True) as staging:
            fill(staging.path, "new")
            meanwhile()
            raise error("planted")


def words_of(folder: Path) -> str:
    """What the bundle was made with; it must be whole."""
    assert names(folder) == ["data", "encoder.onnx", MANIFEST]
    words = (folder / "encoder.onnx").read_text()
    assert (folder / "data" / "weights").read_text() == words
    return words


def refused(target: Path, message: str, *, force: bool = True) -> BundleError:
    with pytest.raises(BundleError, match=message) as caught:
        Staging(target, force=force).__enter__()
    assert caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint
    return caught.value
