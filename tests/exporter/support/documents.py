"""The pages of the documentation, their commands, and what the README's first command makes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from kept import kept
from repository import ROOT

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
}
FENCED = re.compile(r"^```([\w ]*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def blocks(page: str, *kinds: str) -> list[tuple[str, str]]:
    """The kind and the text of each code block of a page, in its order; without ``kinds`` of all."""
    return [(kind, text.strip()) for kind, text in FENCED.findall(PAGES[page]) if kind in kinds or not kinds]


def texts(page: str, kind: str) -> list[str]:
    return [text for _, text in blocks(page, kind)]


def run(command: list[str], folder: Path) -> str:
    """What a command prints that is run in ``folder``; it must succeed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{command[-1]}\n{result.stdout}\n{result.stderr}"
    return result.stdout


class Start(NamedTuple):
    """A folder in which the README's first command has made the bundle of the demo, and what that printed."""

    bundle: Path
    lines: list[str]


def first_command() -> Start:
    """The demo is exported once a session, by the README's first command; copy the bundle before you change it."""

    def make(folder: Path) -> None:
        after_setup = texts("README.md", "sh setup")[0].partition("pip install . && ")[2]
        assert after_setup.startswith("mytx-export onnx -o demo-bundle && ")
        folder.mkdir()
        (folder / "printed.txt").write_text(run(["bash", "-ec", after_setup], folder))

    folder = kept("first-command", make)
    return Start(folder / "demo-bundle", (folder / "printed.txt").read_text().splitlines())
