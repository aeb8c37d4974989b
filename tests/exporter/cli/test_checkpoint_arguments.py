"""``mytx-export onnx`` with a checkpoint that it cannot take: exit code 2, one or two lines, and nothing is left."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cli_support import Run, assert_refused
from exported_models import Exported


def test_no_such_file(run: Run, place: Path) -> None:
    assert_refused(run("onnx", "absent.pt", "-o", place / "x"), "absent.pt: no such file", "hint: ")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"hello, this is text", "not a PyTorch checkpoint"),
        (b"\x80\x04\x95" + b"\xff" * 100, "hint: "),
        (b"PK\x03\x04" + b"\x00" * 500, "truncated or damaged"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "Git LFS pointer"),
    ],
)
@pytest.mark.parametrize("suffix", ["pt", "pkl"])
def test_what_is_no_checkpoint(content: bytes, words: str, suffix: str, run: Run, place: Path, tmp_path: Path) -> None:
    path = tmp_path / f"model.{suffix}"
    path.write_bytes(content)
    assert_refused(run("onnx", path, "--nhead", 2, "-o", place / "x"), str(path), words)


@pytest.mark.parametrize("keep", [10, 1000, -100])
def test_a_truncated_checkpoint(keep: int, checkpoint: Path, run: Run, place: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(checkpoint.read_bytes()[:keep])
    assert_refused(run("onnx", path, "--nhead", 2, "-o", place / "x"), str(path))


def test_a_folder_that_is_no_saved_model(run: Run, place: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert_refused(run("onnx", tmp_path / "empty", "-o", place / "x"), "config.json", "save_model")


class Planted:
    """Runs a command where it is unpickled without care."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.marker}'",)


def test_a_pickle_that_wants_to_run_code_is_refused_and_does_not_run(run: Run, place: Path, tmp_path: Path) -> None:
    torch.save({"model": {"weight": torch.ones(2)}, "extra": Planted(tmp_path / "ran")}, tmp_path / "model.pt")
    assert_refused(run("onnx", tmp_path / "model.pt", "--nhead", 2, "-o", place / "x"), "refused", "system")
    assert not (tmp_path / "ran").exists()


def test_a_head_count_that_is_missing_or_does_not_divide(checkpoint: Path, run: Run, place: Path) -> None:
    assert_refused(run("onnx", checkpoint, "-o", place / "x"), "heads", "--nhead")
    assert_refused(run("onnx", checkpoint, "--nhead", 3, "-o", place / "x"), "3", "16", "--nhead")


NORM = "my_transformer.encoder.layers.0.norm1.bias"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.pop(NORM), ["lacks 1 tensor", NORM]),
        (lambda state: state.update(strange=torch.ones(3)), ["unexpected tensor", "strange", "--key ignore=strange"]),
        (lambda state: state.update({NORM: torch.ones(8)}), [NORM, "[8]", "[16]"]),
        (lambda state: state.update({NORM: torch.full((16,), float("nan"))}), [NORM, "NaN"]),
    ],
)
def test_tensors_that_are_missing_unexpected_or_wrong(
    change: Callable[[dict[str, Any]], Any], words: list[str], couplet: Exported, run: Run, place: Path, tmp_path: Path
) -> None:
    state = collections.OrderedDict(couplet.model.state_dict())
    change(state)
    torch.save(state, tmp_path / "model.pt")
    assert_refused(run("onnx", tmp_path / "model.pt", "--nhead", 2, "-o", place / "x"), *words)


@pytest.mark.parametrize("key", ["nonsense", "a=b", "ignore=absent", "=x", "source_embedding=", "ignore="])
def test_a_key_that_says_nothing_sensible(key: str, checkpoint: Path, run: Run, place: Path) -> None:
    assert_refused(run("onnx", checkpoint, "--nhead", 2, "--key", key, "-o", place / "x"), "--key")
