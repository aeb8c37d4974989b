"""Writing a bundle atomically: it is made in a folder beside its final place, and moved there when it is complete.

``os.replace`` cannot replace a folder that is not empty. So the old bundle is renamed, then the new one is renamed to
its final name, then the old one is deleted. The next command finishes or undoes a swap that was interrupted. Temporary
folders are named ``.<bundle>.mytx-new-<process>`` and ``.<bundle>.mytx-old-<process>``, and belong to that process as
long as it runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import BundleError
from .manifest import MANIFEST

PATIENCE = 2.0  # seconds to wait for the swap of another process, which is two renames
# Temporary folders of this process. Another folder with its number is from a process that has ended.
_mine: set[Path] = set()


class Staging:
    """A context manager: a temporary folder beside ``target`` in which a bundle is made.

    Without :meth:`commit` or :meth:`reject` the folder is deleted at the end, and ``target`` is unchanged.

    Args:
        target: the final place of the bundle.
        force: replace a bundle that is there.
        bundle: whether the folder is a bundle. If so, ``<target>.failed`` is replaced or deleted as well.

    Raises:
        BundleError: if something there may not be replaced, or if the folder cannot be written.
    """

    def __init__(self, target: Path, *, force: bool = False, bundle: bool = True) -> None:
        self.target = Path(os.path.realpath(target))
        self.force = force
        self.bundle = bundle
        if not self.target.name:
            raise BundleError(f"{self.target} cannot be a bundle", "name a folder in it")
        if not _is_utf8(self.target):
            raise BundleError(f"{str(self.target)!a} is not UTF-8, and ONNX opens nothing else", "choose another name")
        self.failed = self.target.with_name(self.target.name + ".failed")
        self.path = self.target.with_name(f".{self.target.name}.mytx-new-{os.getpid()}")
        self._open = False
        self._made: list[Path] = []
        with contextlib.suppress(FileNotFoundError):  # the current folder may be deleted
            if Path.cwd().is_relative_to(self.target):
                raise BundleError(
                    f"{self.target} is the folder that you are in, and a bundle is moved to its place as a whole",
                    "run from outside of it, or choose another --output",
                )
        inside = next((parent for parent in self.target.parents if is_bundle(parent)), None)
        if inside:
            raise BundleError(f"{inside} is a bundle, and nothing else may be in it", "choose another --output")
        recover(self.target)
        _check_target(self.target, force)
        if bundle and os.path.lexists(self.failed):
            listed = None if self.failed.is_symlink() else _listed(self.failed)
            if listed is None:
                raise BundleError(
                    f"{self.failed} is in the way and is not a bundle", "move it, or choose another --output"
                )
            _check_no_other_files(self.failed, listed)

    def __enter__(self) -> Staging:
        parent = self.target.parent
        try:
            with undisturbed():
                for missing in reversed([path for path in (parent, *parent.parents) if not path.exists()]):
                    missing.mkdir(exist_ok=True)
                    self._made.append(missing)
                self.path.mkdir()
                _mine.add(self.path)
                self._open = True
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
        """Move the bundle to its final place, and return that.

        Raises:
            BundleError: if something that may not be replaced has appeared there meanwhile.
        """
        with undisturbed():
            _check_target(self.target, self.force)
            aside = self.target.with_name(f".{self.target.name}.mytx-old-{os.getpid()}")
            replaces = self.target.exists()
            _mine.add(aside)
            if replaces:
                self.target.rename(aside)
            try:
                self.path.rename(self.target)
            except BaseException:
                if replaces:
                    aside.rename(self.target)
                raise
            finally:
                _mine.discard(aside)
            self._made.clear()
            shutil.rmtree(aside, ignore_errors=True)
            if self.bundle:
                shutil.rmtree(self.failed, ignore_errors=True)  # the failed bundle of an earlier attempt
        return self.target

    def reject(self) -> Path:
        """Move the bundle to ``<target>.failed``, where the user can look at it, and return that place."""
        with undisturbed():
            shutil.rmtree(self.failed, ignore_errors=True)
            self.path.rename(self.failed)
            self._made.clear()
        return self.failed

    def _clean(self) -> None:
        with undisturbed():
            if self._open:
                shutil.rmtree(self.path, ignore_errors=True)
                _mine.discard(self.path)
                self._open = False
            for folder in reversed(self._made):
                try:
                    folder.rmdir()
                except OSError:
                    break


def recover(target: Path) -> None:
    """Finish or undo an interrupted swap, and delete folders beside ``target`` that belong to processes that ended."""
    target = Path(os.path.realpath(target))
    for aside in _beside(target, "old"):
        if not target.exists() and _alive(aside):
            _wait_for(target)
        if not target.exists():
            with contextlib.suppress(FileNotFoundError):  # another command has done it
                aside.rename(target)
        elif not _alive(aside):
            shutil.rmtree(aside, ignore_errors=True)
    for stale in _beside(target, "new"):
        if not _alive(stale):
            shutil.rmtree(stale, ignore_errors=True)


def is_bundle(folder: Path) -> bool:
    """Whether ``folder`` is a bundle, which mytx may replace."""
    return _listed(folder) is not None


def write_json(path: Path, values: Any) -> None:
    """Write ``values`` as indented JSON. ``ValueError`` for NaN and infinity, which strict parsers refuse."""
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def _check_target(target: Path, force: bool) -> None:
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise BundleError(f"{target} exists and is not a folder", "choose another --output")
    if not any(target.iterdir()):
        return
    listed = _listed(target)
    if listed is None:
        raise BundleError(f"{target} is not empty and is not a bundle", "choose another --output: it is not replaced")
    if not force:
        raise BundleError(f"{target} exists", "add --force to replace it, or choose another --output")
    _check_no_other_files(target, listed)


def _check_no_other_files(folder: Path, listed: set[str]) -> None:
    """Check that a bundle that will be deleted contains no files of the user."""
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or path.is_file()}
    if strange := sorted(present - listed):
        raise BundleError(
            f"{folder} holds {strange[0]}, which is not a part of the bundle and would be lost",
            "move it, or choose another --output",
        )


def _listed(folder: Path) -> set[str] | None:
    """The files in the manifest of the bundle at ``folder``, and the manifest; None if it is not a bundle."""
    try:
        values = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        ours = {"format", "files", "graphs", "parity"} <= set(values)
        return {MANIFEST, *(entry["path"] for entry in values["files"])} if ours else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _is_utf8(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _beside(target: Path, kind: str) -> list[Path]:
    """The temporary folders ``new`` or ``old`` of ``target``. No glob: the name may have characters like ``*``."""
    prefix = f".{target.name}.mytx-{kind}-"
    try:
        return sorted(path for path in target.parent.iterdir() if path.name.startswith(prefix))
    except OSError:
        return []


def _alive(folder: Path) -> bool:
    """Whether the process that made the temporary ``folder`` still uses it."""
    pid = folder.name.rpartition("-")[2]
    if not pid.isdigit():
        return False
    if int(pid) == os.getpid():
        return folder in _mine
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignores Ctrl-C inside the block, also in processes that it starts: for short work that must not stop halfway."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
