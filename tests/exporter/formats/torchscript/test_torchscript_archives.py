"""TorchScript files that are damaged, foreign or hold planted code are refused."""

from __future__ import annotations

import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from mytx.exporter.errors import BundleError
from mytx.exporter.parity.weights import find_weights
from mytx.exporter.runtimes.torchscript import TorchScript
from planting_code import Touch
from torch_files import TorchFiles, messages, repack


def test_a_foreign_file_is_refused(honest: TorchFiles, tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    torch.save(honest.proven.model.state_dict(), weights)
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("a/b.txt", "text")
    (tmp_path / "text.pt").write_text("text")
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps({"a": 1}))
    whole = honest.path("encoder").read_bytes()
    (tmp_path / "half.pt").write_bytes(whole[: len(whole) // 2])
    program = TorchFiles(honest.proven, "pt2", tmp_path).path("encoder")
    for path, words in {
        weights: "weights without a graph",
        other: "another zip archive",
        tmp_path / "text.pt": "not an archive of PyTorch, or is truncated",
        tmp_path / "empty.pt": "not an archive of PyTorch, or is truncated",
        tmp_path / "pickle.pt": "not an archive of PyTorch, or is truncated",
        tmp_path / "half.pt": "not an archive of PyTorch, or is truncated",
        program: "a torch.export archive",
        tmp_path / "missing.pt": "No such file",
        tmp_path: "cannot be read",
    }.items():
        with pytest.raises(BundleError, match=words) as error:
            TorchScript.open(path)
        assert str(error.value).count("\n") == 1
        assert [finding.check for finding in find_weights("torchscript", path, {})] == ["weights"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data.pkl": b"garbage"}, "is damaged"),
        ({"data/0": None}, "is damaged"),
        ({"extra/mytx.json": b"{}"}, "holds no contract"),
        ({"extra/mytx.json": b"\xff"}, "holds no contract"),
        ({"planted.pkl": pickle.dumps(1)}, "'planted.pkl' is not one that torch.jit.save writes"),
        ({"code/../../x.py": b""}, "is not one that"),
        ({"DATA.pkl": b""}, "stands there twice"),
    ],
)
def test_a_damaged_or_planted_record_is_refused(
    changes: dict[str, bytes | None], words: str, honest: TorchFiles, tmp_path: Path
) -> None:
    with pytest.raises(BundleError, match=re.escape(words)) as error:
        TorchScript.open(repack(honest.path("encoder"), tmp_path / "x.ts.pt", changes))
    assert str(error.value).count("\n") == 1


def test_python_in_its_pickle_does_not_run(honest: TorchFiles, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = repack(honest.path("encoder"), tmp_path / "x.ts.pt", {"data.pkl": pickle.dumps(Touch(marker), 2)})
    with pytest.raises(BundleError, match="is damaged"):
        TorchScript.open(path)
    assert not marker.exists()


def test_without_the_contract_a_file_still_runs(honest: TorchFiles, tmp_path: Path) -> None:
    path = repack(honest.path("encoder"), tmp_path / "encoder.ts.pt", {"extra/mytx.json": None})
    assert list(TorchScript.open(path).run({"src": np.ones((1, 1), dtype=np.int64)})) == ["output 0"]
    assert "output memory is missing" in messages(honest.verify("encoder", path))
