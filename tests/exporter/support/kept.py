"""What is made once for all processes of a test session: the one that needs it first makes it, under a lock."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

VARIABLE = "MYTX_TESTS_KEPT"  # the folder of the session, which pytest's other processes inherit


@functools.cache
def kept_root() -> Path:
    """The folder for it. The process that is asked first makes it, and removes it at its end."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = tempfile.mkdtemp(prefix="mytx-tests-")
        atexit.register(shutil.rmtree, os.environ[VARIABLE], ignore_errors=True)
    return Path(os.environ[VARIABLE])


def kept(name: str, make: Callable[[Path], object]) -> Path:
    """What ``make`` has put at the path that it is given: a file or a folder. Copy it before you change it."""
    return made_once(kept_root() / name, make)


def made_once(path: Path, make: Callable[[Path], object]) -> Path:
    """``path``, where ``make`` puts something unless it is there; what fails half way leaves nothing."""
    if path.exists():  # whole: it came by a rename
        return path
    with FileLock(f"{path}.lock"), tempfile.TemporaryDirectory(dir=path.parent) as folder:
        if not path.exists():
            new = Path(folder) / path.name
            make(new)
            new.rename(path)
    return path
