"""What holds for every command: help that starts fast, streams that are closed, paths that lead nowhere."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from bundles import tiny_bundle
from cli_support import COMMAND, assert_refused
from mytx.exporter import open_bundle
from mytx.exporter.cli.main import cli
from mytx.models import MytxError


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in sorted(cli.commands))])
def test_help_has_an_example_and_needs_no_heavy_import(arguments: list[str]) -> None:
    program = f"""
import sys
from mytx.exporter.cli.main import main
try:
    main({arguments})
except SystemExit as error:
    assert error.code == 0
heavy = {{"torch", "onnx", "onnxruntime", "onnxscript", "numpy", "safetensors"}} & sys.modules.keys()
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: mytx-export" in done.stdout
    assert done.stderr == ""
    if len(arguments) > 1:
        assert "Example" in done.stdout
        assert f"mytx-export {arguments[0]}" in done.stdout.split("Example")[1]


def test_help_is_fast() -> None:
    def fastest(command: list[str]) -> float:
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run(command, capture_output=True, check=True)
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    # 0.3 s on an idle machine; on a busy one, not much more than Python and click alone.
    limit = max(0.3, 3 * fastest([sys.executable, "-c", "import click"]))
    assert fastest([COMMAND, "--help"]) < limit


def test_a_reader_that_goes_away_is_no_error() -> None:
    with subprocess.Popen([COMMAND, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


# The command with an export that is over at once.
VERDICT = """
import sys
from pathlib import Path
from types import SimpleNamespace
from mytx.exporter.cli import export as export_commands
from mytx.exporter.cli import main as cli
passed = sys.argv[1] == "passed"
result = SimpleNamespace(passed=passed, report=None, bundle=Path("x"), assumed=(), seconds={}, to_dict=lambda: {})
export_commands._export = lambda *arguments, **options: result
cli.main(["onnx", "model.pt", "-o", "x", *sys.argv[2:]])
"""


@pytest.mark.parametrize(("verdict", "code"), [("passed", 0), ("failed", 1)])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_goes_away_changes_no_verdict(verdict: str, code: int, options: list[str]) -> None:
    command = [sys.executable, "-c", VERDICT, verdict, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
    assert process.returncode == code


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_without_a_stream_to_print_to_the_exit_code_still_holds(stream: str) -> None:
    closes = {"stdout": ">&-", "stderr": "2>&-"}[stream]
    for arguments, code in (("--help", 0), ("onnx absent.pt", 2)):
        done = subprocess.run(f"'{COMMAND}' {arguments} {closes}", shell=True, capture_output=True, check=False)
        assert done.returncode == code
        assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["verify", "run", "inspect"])
def test_what_is_not_there_is_said(command, run, tmp_path):
    assert_refused(run(command, tmp_path / "nothing", *(["text"] if command == "run" else [])), "nothing")


@pytest.mark.parametrize("command", ["verify", "run", "inspect"])
def test_a_folder_that_is_no_bundle_is_said(command, run, tmp_path):
    assert_refused(run(command, tmp_path, *(["text"] if command == "run" else [])))


def test_a_file_of_a_bundle_is_not_the_bundle(run):
    assert_refused(run("verify", tiny_bundle() / "encoder.onnx"), str(tiny_bundle()))


def test_every_error_of_the_library_is_one_that_the_command_line_knows():
    with pytest.raises(MytxError):
        open_bundle("nowhere")


@pytest.mark.parametrize("command", ["onnx", "verify", "inspect", "run", "bench"])
def test_the_help_of_each_command_has_an_example(command, run):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"  mytx-export {command} " in out


def test_shell_completion_knows_the_commands():
    environment = {"_MYTX_EXPORT_COMPLETE": "bash_complete", "COMP_WORDS": "mytx-export v", "COMP_CWORD": "1"}
    command = Path(sys.executable).with_name("mytx-export")
    result = subprocess.run([command], env=environment, capture_output=True, text=True, check=False)
    assert "verify" in result.stdout
