"""Running ``mytx-export``: as a process, or in this process with exports that were made before."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import onnx_ir as ir
import pytest
import torch

from exported_models import Exported, plain
from mytx.exporter.cases.case import Case
from mytx.exporter.cli import main as cli
from mytx.exporter.contracts.contract import Contract
from mytx.exporter.formats.onnx import export as onnx_format
from mytx.exporter.formats.onnx import files as onnx_files
from mytx.exporter.formats.table import ExportOptions
from mytx.exporter.graphs import exportable as subject
from mytx.exporter.graphs.graph import Graph
from mytx.exporter.parity import noise
from mytx.exporter.parity.compare import Expected
from mytx.models import Model, save_model

COMMAND = str(Path(sys.executable).with_name("mytx-export"))
GRAPHS = ("encoder", "decoder", "full")
# Rows of a report on a model with a decoder: in PyTorch itself; in each way that a file is run, and by the halves.
EAGER = {"encoder": 1, "decoder": 1, "full": 2}
IN_ONNX = {"encoder": 7, "decoder": 7, "full": 8}
HALVES = "onnxruntime, decoder(encoder)"


class Result(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one JSON object on stdout, read strictly."""
        assert self.out.count("\n") == 1
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


Run = Callable[..., Result]


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
    """Let the export, and PyTorch's references, be what was made before: for tests of what happens around them.

    Only of the graphs that do not decode, and the model then has no others: those take most of the time.
    """

    def export(graphs: dict[str, Graph], name: str, folder: Path, options: ExportOptions) -> None:
        onnx_format.save(exported.finished(name, options.producer), folder / f"{name}.onnx")

    compute, more = noise.PLAIN

    def ready(
        model: Model, graph: Graph, plan: list[Case], moved: Callable[[Case], bool] = lambda case: True
    ) -> list[dict[str, Expected]]:
        made = exported.expected(graph.name)
        return list(made) if len(made) == len(plan) else compute(model, graph, plan, moved)

    whole = subject.graphs_of
    monkeypatch.setattr(subject, "graphs_of", lambda model, masks=None: plain(whole(model, masks)))
    monkeypatch.setattr(onnx_files, "export", export)
    monkeypatch.setattr(noise, "PLAIN", (ready, more))


@contextmanager
def planted(fault: Callable[[ir.Model], None], graph: str = "decoder") -> Iterator[None]:
    """The file of ``graph`` comes out wrong."""
    finish = onnx_format.finish

    def faulty(model: ir.Model, contract: Contract, properties: dict[str, str]) -> None:
        if contract.graph == graph:
            fault(model)
        finish(model, contract, properties)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_format, "finish", faulty)
        yield


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
