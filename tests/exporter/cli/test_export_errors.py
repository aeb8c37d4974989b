"""``mytx-export onnx`` where the export fails, mytx has a bug or the user presses Ctrl-C: exit code and message."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch

from cli_support import COMMAND, Result, Run, assert_refused, contents, planted, run_here
from mytx.exporter import pipeline
from mytx.exporter.bundle import inspection as inspecting
from mytx.exporter.formats.onnx import export as onnx_format
from mytx.exporter.formats.onnx import files as onnx_files
from mytx.exporter.parity import prove as proving

# --- 2: an export that fails -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verbose", [False, True])
def test_an_export_that_fails_names_the_graph_and_the_reason(
    verbose: bool, folder: Path, run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("\n\nplanted reason\nand a long story")

    monkeypatch.setattr(torch.export, "export", fail)
    result = run("onnx", folder, "-o", place / "x", *(["-v"] if verbose else []))
    assert result.code == 2
    assert result.out == ""
    lines = result.err.splitlines()
    assert lines[-2:] == [
        "error: PyTorch could not export the encoder graph: planted reason",
        "hint: run again with -v for the whole story",
    ]
    if verbose:
        assert "and a long story" in result.err
        assert "Traceback" in result.err
    else:
        assert len(lines) == 2


@pytest.mark.usefixtures("quick")
def test_an_invalid_file_names_the_graph(folder: Path, run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plant(model: ir.Model) -> None:
        next(iter(model.graph)).op_type = "NoSuchOperator"

    with planted(plant, "encoder"):
        assert_refused(run("onnx", folder, "-o", place / "x"), "encoder.onnx", "NoSuchOperator", "--opset")


# --- 3: a bug in mytx ------------------------------------------------------------------------------------------------


def fail_strangely(*arguments: object, **options: object) -> None:
    raise RuntimeError("planted\nin two lines")


@pytest.mark.usefixtures("quick")
def test_a_bug_is_a_short_message_and_a_log(
    folder: Path, run: Run, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "logs"))
    monkeypatch.setattr(pipeline, "prove", fail_strangely)
    result = run("onnx", folder, "-o", place / "x")
    [log] = (tmp_path / "logs").iterdir()
    assert_refused(result, "a bug in mytx", "RuntimeError: planted in two lines", "report", str(log), code=3)
    assert "Traceback" in log.read_text()
    assert "in two lines" in log.read_text()


@pytest.mark.usefixtures("quick")
def test_a_bug_where_no_log_can_be_written_is_still_3(
    folder: Path, run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", full)
    monkeypatch.setattr(pipeline, "prove", fail_strangely)
    assert_refused(run("onnx", folder, "-o", place / "x"), "a bug in mytx", "report", code=3)


# --- 130: Ctrl-C -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("module", "name"),
    [
        (onnx_files, "export"),
        (onnx_format, "finish"),
        (onnx_format, "save"),
        (proving, "every_case"),
        (proving, "verify_file"),
        (proving, "find_weights"),
        (pipeline, "write_stored"),
        (pipeline, "write_json"),
        (pipeline, "describe_files"),
    ],
)
def test_ctrl_c_at_any_step_leaves_nothing_and_the_old_bundle_whole(
    module: Any, name: str, folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*arguments: object, **options: object) -> None:
        signal.raise_signal(signal.SIGINT)

    target = tmp_path / "bundle"
    target.mkdir()
    (target / "manifest.json").write_text('{"format": 1, "files": [], "graphs": {}, "parity": {}}')
    before = contents(tmp_path)
    monkeypatch.setattr(module, name, press)
    result = run("onnx", folder, "-o", target, "--force")
    assert result.code == 130
    assert result.err.strip() == "error: interrupted; no unfinished bundle is left behind"
    assert contents(tmp_path) == before


@pytest.mark.parametrize("pause", [None, 0.02])
def test_ctrl_c_in_the_real_command(pause: float | None, bare: Path, place: Path) -> None:
    arguments = [COMMAND, "onnx", str(bare), "--nhead", "2", "-o", str(place / "new" / "bundle")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        seen = 0
        while seen < 20:  # so the export goes on, and this is not the trial whether there can be a folder
            seen = seen + 1 if list(place.glob("new/.bundle.mytx-new-*")) else 0
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        if pause is not None:  # an impatient person presses twice
            time.sleep(pause)
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    assert err.strip() == "error: interrupted; no unfinished bundle is left behind"


def test_an_interrupt_that_python_wrapped_in_another_error_is_still_an_interrupt(
    bare: Path, place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise RuntimeError("Error calling __set_name__") from error

    monkeypatch.setattr("mytx.exporter.formats.onnx.files.to_onnx", interrupted)
    result = run_here(capfd, "onnx", bare, "--nhead", 2, "-o", place / "bundle")
    assert result.code == 130
    assert result.err.strip() == "error: interrupted; no unfinished bundle is left behind"
    assert not list(place.iterdir())


def test_code_that_ends_the_program_is_not_taken_for_a_pass(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., Result]
) -> None:
    def end(*_: Any, **__: Any) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(inspecting, "inspect_path", end)
    result = run("inspect", ".")
    assert result.code == 3
    assert "SystemExit" in result.err
