"""A user's model in a folder of its own, and the command run there."""

from __future__ import annotations

import importlib
import io
import shutil
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from cli_support import Result
from mytx.exporter.cli import main as cli
from repository import EXAMPLES

EXAMPLE = EXAMPLES / "translation"
QUICK = ("--plan", "quick")


def run(*arguments: str) -> Result:
    """The command in this process, also where no test runs yet."""
    out, err = io.StringIO(), io.StringIO()
    handler = signal.getsignal(signal.SIGINT)
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as exit_:
            cli.main(list(arguments))
    finally:
        signal.signal(signal.SIGINT, handler)
    return Result(int(exit_.value.code or 0), out.getvalue(), err.getvalue())


def write_example(folder: Path) -> Path:
    """The worked example in ``folder``, with a checkpoint."""
    for path in EXAMPLE.glob("*.py"):
        shutil.copy(path, folder)
    subprocess.run([sys.executable, "translation.py", "model.pt"], cwd=folder, check=True, capture_output=True)
    return folder


def forget() -> None:
    """Modules of users, so that the next test imports its own."""
    for name in ("translation", "contract", "strange"):
        sys.modules.pop(name, None)


def strange(folder: Path, text: str) -> None:
    """A module of a user's called ``strange``."""
    forget()
    (folder / "strange.py").write_text(text)
    # The finder remembers what was in the folder within the same second.
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    importlib.invalidate_caches()
