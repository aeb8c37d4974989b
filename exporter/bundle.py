"""The bundle on disk: made beside its final place, moved there whole, and the old one never half gone.

``os.replace`` cannot put a folder over one that has something in it. So the old bundle is renamed aside, the new one
in, the old one deleted; a command that finds an interrupted swap finishes or undoes it first.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any

from .errors import BundleError
from .manifest import MANIFEST


class Staging:
    """A folder beside ``target`` in which a bundle is made.

    As a context manager: without :meth:`commit` or :meth:`reject` nothing is left behind, and what stood at
    ``target`` stays as it was.

    Args:
        target: where the bundle is to be.
        force: replace a bundle that is there.

    Raises:
        BundleError: where something is there that may not be replaced, or nothing can be written.
    """

    def __init__(self, target: Path, *, force: bool = False) -> None:
        self.target = Path(os.path.realpath(target))
        self.failed = self.target.with_name(self.target.name + ".failed")
        self.path = self.target.with_name(f".{self.target.name}.mytx-new-{os.getpid()}")
        self._made: list[Path] = []
        recover(self.target)
        _check_target(self.target, force)
        if self.failed.exists() and not is_bundle(self.failed):
            raise BundleError(f"{self.failed} is in the way and is not a bundle", "move it, or choose another --output")

    def __enter__(self) -> Staging:
        parent = self.target.parent
        try:
            for missing in reversed([path for path in (parent, *parent.parents) if not path.exists()]):
                missing.mkdir()
                self._made.append(missing)
            self.path.mkdir()
        except OSError as error:
            self._clean()
            raise BundleError(
                f"cannot write to {parent}: {error.strerror}", "choose another --output, or make it writable"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clean()

    def commit(self) -> Path:
        """Move the bundle to its place; returns the place."""
        aside = _aside(self.target)
        if self.target.exists():
            self.target.rename(aside)
        self.path.rename(self.target)
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(self.failed, ignore_errors=True)  # of an earlier attempt: no longer true
        self._made.clear()
        return self.target

    def reject(self) -> Path:
        """Move the bundle to ``<target>.failed``, to be looked at; returns that place."""
        shutil.rmtree(self.failed, ignore_errors=True)
        self.path.rename(self.failed)
        self._made.clear()
        return self.failed

    def _clean(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        for folder in reversed(self._made):
            try:
                folder.rmdir()
            except OSError:
                break


def recover(target: Path) -> None:
    """Finish or undo a swap that was interrupted, and remove what dead processes left beside ``target``."""
    aside = _aside(target)
    if aside.exists():
        if target.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.rename(target)
    for stale in target.parent.glob(f".{_escape(target.name)}.mytx-new-*"):
        if not _alive(stale.name.rpartition("-")[2]):
            shutil.rmtree(stale, ignore_errors=True)


def is_bundle(folder: Path) -> bool:
    """Whether ``folder`` is one that mytx made, and so may replace."""
    return (folder / MANIFEST).is_file()


def write_json(path: Path, values: Any) -> None:
    """Write ``values`` as JSON that a person can read and a strict parser accepts."""
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def _check_target(target: Path, force: bool) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise BundleError(f"{target} exists and is not a folder", "choose another --output")
    if not any(target.iterdir()):
        return
    if not is_bundle(target):
        raise BundleError(f"{target} is not empty and is not a bundle", "choose another --output: it is not replaced")
    if not force:
        raise BundleError(f"{target} exists", "add --force to replace it, or choose another --output")


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.mytx-old")


def _escape(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _alive(pid: str) -> bool:
    if not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
