"""Files of torch.export that are damaged, foreign or hold planted code are refused before anything in them runs."""

from __future__ import annotations

import pickle
import re
import zipfile
from pathlib import Path

import pytest
import torch

from mytx.exporter.errors import BundleError
from mytx.exporter.formats.program_text import is_expression
from mytx.exporter.formats.pt2 import load
from mytx.exporter.parity.weights import find_weights
from mytx.exporter.quiet import quiet
from mytx.exporter.runtimes.pt2 import ExportedGraph
from planting_code import Changes, Touch, plants
from torch_files import TorchFiles, repack

# --- planted code ----------------------------------------------------------------------------------------------------


def torch_runs(path: Path) -> None:
    """Open a file in PyTorch alone, and run it once."""
    src = torch.ones(2, 7, dtype=torch.int64)
    with quiet():
        torch.export.load(path).module()(src, src == 0)


@pytest.mark.parametrize("plant", plants())
def test_planted_code_is_refused_before_it_runs(plant: str, honest: TorchFiles, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    changes, words, runs = plants()[plant]
    path = repack(honest.path("encoder"), tmp_path / "encoder.pt2", changes(marker))
    for attempt in (load, ExportedGraph.open):
        with pytest.raises(BundleError, match=words) as error:
            attempt(path)
        assert str(error.value).count("\n") == 1
    assert [finding.check for finding in find_weights("pt2", path, honest.weights("encoder"))] == ["weights"]
    assert not marker.exists()
    if runs:  # so that the plant is one: PyTorch alone falls for it
        with pytest.raises(Exception):  # noqa: B017,PT011 - whatever PyTorch makes of what is left
            torch_runs(path)
        assert marker.exists()


@pytest.mark.parametrize(
    "text",
    [
        "Mul(Integer(4), Symbol('s25', positive=True, integer=True))",
        "Pow(Symbol('s50'), Integer(2))",
        "L['tgt_mask'].size()[0] == (2*L['tgt'].size()[1])",
        "4*s52",
        "Max(1, s0) <= 5 and not s1 > 3",
    ],
)
def test_arithmetic_is_an_expression(text: str) -> None:
    assert is_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "exit()",
        "s0.__class__",
        "L['src'].size(*[1])",
        "L['src'].numpy()",
        "Symbol('__import__(1)')",
        "Symbol.mro()",
        "(lambda: 1)()",
        "[x for x in s0]",
        "f'{s0}'",
        "s0 if s1 else s2",
        "(s0 := 1)",
        "Symbol('s0')('x')",
        "eval",
        "s0; s1",
        "s0 == 1, 2",
        "b'x'",
        "",
        "(" * 500 + ")" * 500,
    ],
)
def test_anything_else_is_none(text: str) -> None:
    assert not is_expression(text)


# --- files that are none ---------------------------------------------------------------------------------------------


def test_a_foreign_file_is_refused(honest: TorchFiles, tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt2"
    torch.save(honest.proven.model.state_dict(), weights)
    other = tmp_path / "other.pt2"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("a/b.txt", "text")
        archive.writestr("c.txt", "text")
    (tmp_path / "text.pt2").write_text("text")
    (tmp_path / "pickle.pt2").write_bytes(pickle.dumps(Touch(tmp_path / "marker")))
    whole = honest.path("encoder").read_bytes()
    (tmp_path / "half.pt2").write_bytes(whole[: len(whole) // 2])
    script = TorchFiles(honest.proven, "torchscript", tmp_path).path("encoder")
    for path, words in {
        weights: "weights without a graph",
        other: "another zip archive",
        tmp_path / "text.pt2": "not an archive of PyTorch, or is truncated",
        tmp_path / "pickle.pt2": "not an archive of PyTorch, or is truncated",
        tmp_path / "half.pt2": "not an archive of PyTorch, or is truncated",
        script: "a TorchScript archive",
        tmp_path / "missing.pt2": "No such file",
        tmp_path: "cannot be read",
    }.items():
        with pytest.raises(BundleError, match=words) as error:
            ExportedGraph.open(path)
        assert str(error.value).count("\n") == 1
        assert [finding.check for finding in find_weights("pt2", path, {})] == ["weights"]
    assert not (tmp_path / "marker").exists()


def empty(content: bytes) -> bytes:
    return b'{"config": {}}'


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"models/model.json": b"{}"}, "is damaged"),
        ({"models/model.json": b"{"}, "is not JSON"),
        ({"models/model.json": b"[" * 100_000}, "is not JSON"),
        ({"data/weights/weight_0": None}, "has no data/weights/weight_0"),
        ({"data/weights/weight_0": b"12345678"}, "is damaged"),
        ({"data/weights/model_weights_config.json": b"[]"}, "lists no weights"),
        ({"data/weights/model_weights_config.json": empty}, "is damaged"),
        ({"data/constants/model_constants_config.json": None}, "has no data/constants"),
        ({"data/sample_inputs/model.pt": None}, "has no data/sample_inputs"),
        ({"archive_version": b"7"}, "is damaged"),
        ({"archive_format": b"pt3"}, "truncated or damaged"),
        ({"extra/mytx.json": b"{}"}, "holds no contract"),
        ({"MODELS/model.json": b"{}"}, "stands there twice"),
    ],
)
def test_a_damaged_record_is_refused(changes: Changes, words: str, honest: TorchFiles, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=re.escape(words)) as error:
        ExportedGraph.open(repack(honest.path("encoder"), tmp_path / "encoder.pt2", changes))
    assert str(error.value).count("\n") == 1


def test_an_archive_behind_another_is_not_taken_for_it(honest: TorchFiles, tmp_path: Path) -> None:
    changes, _, _ = plants()["sample inputs"]
    evil = repack(honest.path("encoder"), tmp_path / "evil.pt2", changes(tmp_path / "marker"))
    for number, (first, second) in enumerate([(evil, honest.path("encoder")), (honest.path("encoder"), evil)]):
        path = tmp_path / f"both{number}.pt2"
        path.write_bytes(first.read_bytes() + second.read_bytes())
        with pytest.raises(BundleError):
            load(path)
    assert not (tmp_path / "marker").exists()
