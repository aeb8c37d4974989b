"""Files that are no checkpoint, are damaged or hold code: one clear message each, and nothing in them runs."""

from __future__ import annotations

import argparse
import collections
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from checkpoint_support import refused
from layout_writers import couplet
from mytx.models import load_checkpoint


class Planted:
    """Runs a command where it is unpickled without care."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


def whole(path: Path) -> bytes:
    torch.save(couplet().state_dict(), path)
    return path.read_bytes()


def test_no_such_file(tmp_path: Path) -> None:
    refused(tmp_path / "absent.pt", r"absent\.pt: no such file")


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    assert "save_model" in refused(tmp_path, r"has no config\.json").hint


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_an_empty_file(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    refused(tmp_path / name, "is empty")


@pytest.mark.parametrize("keep", [3, 10, 100, 5000, -200, -1])
def test_a_truncated_archive(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(whole(path)[:keep])
    refused(path, "truncated or damaged|not a PyTorch checkpoint")


@pytest.mark.parametrize("keep", [5, 30, 600, -10])
def test_a_truncated_file_in_the_old_format(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(couplet().state_dict(), path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:keep])
    refused(path, "truncated, damaged|not one of tensors")


@pytest.mark.parametrize("keep", [4, 12, 200, -1])
def test_a_truncated_safetensors_file(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(couplet().state_dict(), path)
    path.write_bytes(path.read_bytes()[:keep])
    refused(path, "not a readable safetensors file, or is truncated")


def test_a_changed_byte_in_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    content = bytearray(whole(path))
    with zipfile.ZipFile(path) as archive:
        record = max(archive.infolist(), key=lambda info: info.file_size)
    content[record.header_offset + 200] ^= 1
    path.write_bytes(content)
    refused(path, "truncated or damaged: Bad CRC-32")


def test_archives_without_checksums_load(tmp_path: Path) -> None:
    computed = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(couplet().state_dict(), tmp_path / "model.pt")
    finally:
        torch.serialization.set_crc32_options(computed)
    load_checkpoint(tmp_path / "model.pt", 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello, this is text", "not a PyTorch checkpoint"),
        (b"<!DOCTYPE html><html>404</html>", "not a PyTorch checkpoint"),
        (b"\x00" * 4000, "not a PyTorch checkpoint"),
        (b"\x80\x02garbage that is no pickle", "truncated, damaged|not one of tensors"),
        (b"\x80\x04\x95" + b"\xff" * 100, "not one of tensors|truncated, damaged"),
        (b"PK\x03\x04" + b"\x00" * 500, "truncated or damaged"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "Git LFS pointer"),
    ],
)
def test_what_is_no_checkpoint(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    refused(tmp_path / "model.pt", message)


def test_an_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    whole(path)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root reads everything")
    refused(path, "cannot be read: Permission denied")


def test_other_archives(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    refused(path, "a zip archive, but not one that torch.save wrote")
    np.savez(tmp_path / "model.npz", a=np.ones(3))
    refused(tmp_path / "model.npz", "a zip archive, but not one that torch.save wrote")


@pytest.mark.filterwarnings("ignore")
def test_a_torchscript_archive(tmp_path: Path) -> None:
    torch.jit.script(nn.Linear(2, 2)).save(str(tmp_path / "model.pt"))
    assert "torch.jit.load" in refused(tmp_path / "model.pt", "TorchScript archive").hint


def plant_in_archive(path: Path, value: Any) -> None:
    torch.save({"model": couplet().state_dict(), "extra": value}, path)


def plant_in_old_file(path: Path, value: Any) -> None:
    torch.save({"model": couplet().state_dict(), "extra": value}, path, _use_new_zipfile_serialization=False)


def plant_in_pickle(path: Path, value: Any) -> None:
    path.write_bytes(pickle.dumps({"extra": value}))


def plant_in_pickle_2(path: Path, value: Any) -> None:
    path.write_bytes(pickle.dumps({"extra": value}, protocol=2))


@pytest.mark.parametrize("plant", [plant_in_archive, plant_in_old_file, plant_in_pickle, plant_in_pickle_2])
def test_a_pickle_that_wants_to_run_code_is_refused_by_name_and_does_not_run(
    plant: Callable[[Path, Any], None], tmp_path: Path
) -> None:
    marker, path = tmp_path / "ran", tmp_path / "model.pt"
    plant(path, Planted(marker))
    error = refused(path, r"refused: its pickle asks to run (posix|nt|os)\.system")
    assert "torch.save(model.state_dict()" in error.hint
    plant(path, argparse.Namespace(lr=1))
    refused(path, r"refused: its pickle asks to run argparse\.Namespace")
    assert not marker.exists()


def test_a_whole_module_is_refused_by_its_class(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "model.pt")
    error = refused(tmp_path / "model.pt", r"asks to run torch\.nn\.modules\.linear\.Linear")
    assert "torch.save(model.state_dict()" in error.hint


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_state_dict_written_by_pickle_itself(protocol: int, tmp_path: Path) -> None:
    state = collections.OrderedDict(a=torch.ones(3))
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(state, protocol=protocol))
    refused(tmp_path / "model.pkl", r"asks to run torch\.storage\._load_from_bytes")
