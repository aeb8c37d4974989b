"""``mytx-export onnx`` with options that do not exist or do not fit: exit code 2, one or two lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cli_support import Run, assert_refused, run_process, save_folder
from exported_models import Exported


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model.pt"], ["--output"]),
        (["-o"], ["'-o'"]),
        (["one.pt", "two.pt", "-o", "x"], ["two.pt"]),
        (["--bogus", "-o", "x"], ["--bogus"]),
        (["--opset", "abc", "-o", "x"], ["--opset", "'abc'"]),
        (["--component", "steps", "-o", "x"], ["'steps'", "'encoder'", "'step'", "'generate'"]),
        (["--activation", "tanh", "-o", "x"], ["'tanh'", "'relu'"]),
        (["--pooling", "max", "-o", "x"], ["'max'", "'upstream-sum'"]),
        (["--nhead", "0", "-o", "x"], ["--nhead", "0"]),
        (["--nhead", "two", "-o", "x"], ["--nhead", "'two'"]),
        (["--pad-id", "-1", "-o", "x"], ["--pad-id", "-1"]),
        (["--layer-norm-eps", "small", "-o", "x"], ["--layer-norm-eps", "'small'"]),
        (["--vocab", "absent.json", "-o", "x"], ["--vocab", "absent.json"]),
        (["-v", "-q", "-o", "x"], ["--verbose", "--quiet"]),
    ],
)
def test_options_that_do_not_exist_or_do_not_fit(arguments: list[str], words: list[str], place: Path) -> None:
    result = run_process("onnx", *arguments, cwd=place)
    assert_refused(result, *words, "hint: see mytx-export ", "--help")


def test_a_command_that_does_not_exist(place: Path) -> None:
    assert_refused(run_process("onxx", cwd=place), "'onxx'", "hint: see mytx-export --help")


def test_no_command_at_all_shows_the_help_and_is_an_error() -> None:
    result = run_process()
    assert result.code == 2
    assert "Usage: mytx-export" in result.err


@pytest.mark.parametrize("opset", [17, 26, 0, -1])
def test_opsets_that_are_not_supported(opset: int, folder: Path, run: Run, place: Path) -> None:
    assert_refused(run("onnx", folder, "--opset", opset, "-o", place / "x"), f"opset {opset}", "18 to 25")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--layer-norm-eps", "nan"),
        ("--layer-norm-eps", "-1"),
        ("--embedding-scale", "inf"),
        ("--pad-id", "99999"),
        ("--eos-id", "99999"),
    ],
)
def test_values_that_no_model_has(option: str, value: str, checkpoint: Path, run: Run, place: Path) -> None:
    assert_refused(run("onnx", checkpoint, "--nhead", 2, option, value, "-o", place / "x"), option)


@pytest.mark.parametrize("vocab", ["", "not json", "[]", "3", '{"a": "b"}', '{"a": 0, "b": 0}'])
def test_a_vocabulary_that_is_none(vocab: str, folder: Path, run: Run, place: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(vocab)
    assert_refused(run("onnx", folder, "--vocab", tmp_path / "mine.json", "-o", place / "x"), "mine.json")


def test_an_option_that_contradicts_a_saved_model(folder: Path, run: Run, place: Path) -> None:
    assert_refused(run("onnx", folder, "--nhead", 4, "-o", place / "x"), "config.json says nhead=2", "--nhead")


def test_masks_on_a_model_on_ids(folder: Path, run: Run, place: Path) -> None:
    assert_refused(run("onnx", folder, "--masks", "tgt_mask", "-o", place / "x"), "--masks", "leave it out")


@pytest.mark.parametrize(
    ("masks", "words"),
    [
        ("causal_mask", ["'causal_mask'", "tgt_mask"]),
        ("tgt_mask:4d", ["tgt_mask", "'4d'", "3d"]),
        ("src_key_padding_mask:3d", ["src_key_padding_mask", "'3d'", "bool, float"]),
        ("tgt_mask,tgt_mask:bool", ["tgt_mask", "twice"]),
        ("tgt_mask,:bool", ["''"]),
    ],
)
def test_masks_that_do_not_exist_or_cannot_be(masks: str, words: list[str], bare: Path, run: Run, place: Path) -> None:
    assert_refused(run("onnx", bare, "--nhead", 2, "--masks", masks, "-o", place / "x"), "--masks", *words)


def test_a_component_that_the_model_lacks(
    exports: Callable[[str], Exported], run: Run, place: Path, tmp_path: Path
) -> None:
    saved = save_folder(exports("average pooling"), tmp_path / "saved")
    result = run("onnx", saved, "--component", "encoder", "--component", "decoder", "-o", place / "x")
    assert_refused(result, "no decoder", "encoder, full")
