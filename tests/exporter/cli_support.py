"""Running ``mytx-export``: as a process, or here with exports that were made before."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from exported_models import Exported

from mytx.exporter import cli, onnx_format, pipeline
from mytx.models import save_model

COMMAND = str(Path(sys.executable).with_name("mytx-export"))
GRAPHS = ("encoder", "decoder", "full")


@dataclass(frozen=True)
class Result:
    """What a command came to."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one JSON object on stdout, read strictly."""
        assert self.out.count("\n") == 1
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def run_process(*arguments: str | Path, **options: Any) -> Result:
    """The real command, in a process of its own."""
    done = subprocess.run(
        [COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False, **options
    )
    return Result(done.returncode, done.stdout, done.stderr)


def run_here(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> Result:
    """The command in this process, where torch is loaded and what is not tested can be replaced."""
    capfd.readouterr()
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as exit_:
            cli.main([str(argument) for argument in arguments])
    finally:
        signal.signal(signal.SIGINT, handler)
    code = exit_.value.code
    assert isinstance(code, int)
    return Result(code, *capfd.readouterr())


def assert_refused(result: Result, *words: str, code: int = 2) -> None:
    """One or two lines that name the problem and the next step, and the exit code of bad input."""
    lines = result.err.splitlines()
    assert result.code == code, result
    assert result.out == ""
    assert 1 <= len(lines) <= 2, result.err
    assert lines[0].startswith("error: ")
    assert all(line.startswith("hint: ") for line in lines[1:])
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err


def use_exports(monkeypatch: pytest.MonkeyPatch, exported: Exported) -> None:
    """Let the export, and PyTorch's references, be what was made before: for tests of what happens around them."""
    ready = {name: (exported.raw(name), exported.expected(name)) for name in exported.graphs}
    monkeypatch.setattr(onnx_format, "to_onnx", lambda graph, opset=18: ready[graph.name][0].clone())
    monkeypatch.setattr(pipeline, "compute_references", lambda model, graph, plan: ready[graph.name][1])


def save_folder(exported: Exported, folder: Path) -> Path:
    """The model as ``save_model`` writes it."""
    save_model(exported.model, folder)
    return folder


def save_pt(exported: Exported, path: Path) -> Path:
    """The model's state dict as ``torch.save`` writes it."""
    torch.save(exported.model.state_dict(), path)
    return path


def contents(folder: Path) -> dict[str, bytes | str | None]:
    """Everything below ``folder``: the bytes of files, the targets of links, None for folders."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = str(path.readlink())
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def names(folder: Path) -> list[str]:
    """What stands in ``folder``, hidden names too."""
    return sorted(path.name for path in folder.iterdir())
