"""An output file whose writing can be interrupted at any moment and resumed. No torch here.

Until it is complete, the file is ``OUTPUT.part``. ``OUTPUT.part.json`` stores what it is made from and how many of its
bytes are valid. It is replaced after each chunk, once the chunk is on the disk. A resumed run first cuts off all bytes
behind the valid ones, such as half a line. At the end, ``OUTPUT.part`` is renamed to ``OUTPUT``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from ..bundle.staging import is_bundle, undisturbed
from ..errors import OptionError

ANEW = "delete it, add --force to begin anew, or choose another --output"
ELSEWHERE = "choose another --output"


class PartialOutput:
    """The output of a command that turns the lines of an input into text.

    Use it as a context manager. It leaves no files if no line was done.

    Args:
        target: path of the complete file.
        source: path of the input.
        facts: what the result depends on: JSON values under names that are printed in messages.
        force: replace a complete file, and a part that was made from another input or with other options.

    Attributes:
        lines: number of input lines that are done.

    Raises:
        OptionError: if the file cannot be written; on entering, if an earlier part does not fit.
    """

    def __init__(self, target: Path, source: Path, facts: dict[str, Any], *, force: bool = False) -> None:
        self.target = Path(os.path.realpath(target))
        self.source = source
        self.facts = facts
        self.force = force
        self.part = self.target.with_name(f"{self.target.name}.part")
        self.notes = self.target.with_name(f"{self.target.name}.part.json")
        self._new_notes = self.notes.with_name(f"{self.notes.name}.new")
        self._check_target()
        self._start_anew()

    def _start_anew(self) -> None:
        self.lines = 0
        self._size = 0  # valid bytes of the part
        self._digest = hashlib.sha256()  # hash of the input lines that are done
        self._sha256 = self._digest.hexdigest()

    def __enter__(self) -> PartialOutput:
        self._open()
        try:
            self._check_target()  # again: another process may have finished meanwhile
            self._read_notes()
            self._file.truncate(self._size)
            self._write_notes()
        except BaseException:
            with undisturbed():
                if not os.fstat(self._file.fileno()).st_size:
                    self._remove()
                self._file.close()
            raise
        return self

    def _open(self) -> None:
        """Open and lock the part, so that no other process writes it."""
        while True:
            try:
                self._file = self.part.open("ab")
            except OSError as error:
                raise OptionError(f"cannot write {self.part}: {error.strerror}", ELSEWHERE) from error
            if not _lock(self._file.fileno()):
                self._file.close()
                raise OptionError(f"another process is writing {self.part}", "wait for it, or end it")
            if self.part.exists() and os.path.samestat(os.fstat(self._file.fileno()), self.part.stat()):
                return
            self._file.close()  # another process renamed it between open and lock: try again

    def _remove(self) -> None:
        for path in (self.part, self.notes, self._new_notes):
            path.unlink(missing_ok=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with undisturbed():
            if not self._file.closed:
                self._new_notes.unlink(missing_ok=True)  # it remains if the disk was full
                if not self.lines:
                    self._remove()
            self._file.close()

    def rest(self, start: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
        """The input lines that are not done yet.

        Args:
            start: returns the lines of the input, from the first.

        Raises:
            OptionError: if the input's first lines are not those that the part was made from.
        """
        raw = start()
        for _ in range(self.lines):
            self._digest.update(next(raw, b""))
        if self._digest.hexdigest() == self._sha256:
            return raw
        if not (self.force and self.source.is_file()):  # a pipe cannot be read again
            raise OptionError(
                f"the first {self.lines:,} lines of {self.source} are not those that {self.part} was made from", ANEW
            )
        self._start_anew()
        self._file.truncate(0)
        self._write_notes()
        return start()

    def add(self, text: str, raw: Iterable[bytes]) -> None:
        """Write ``text``, whole lines, the result of the input lines ``raw``."""
        with undisturbed():
            self._file.write(text.encode("utf-8"))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._size = os.fstat(self._file.fileno()).st_size
            for line in raw:
                self._digest.update(line)
                self.lines += 1
            self._sha256 = self._digest.hexdigest()
            self._write_notes()

    def finish(self) -> Path:
        """Rename the complete part to the target, and return the target's path."""
        with undisturbed():
            self.part.replace(self.target)
            self.notes.unlink(missing_ok=True)
            self._file.close()  # last, because it releases the lock
        return self.target

    def _check_target(self) -> None:
        folder = self.target.parent
        if not folder.is_dir():
            raise OptionError(f"{folder} is not a folder", f"make it, or {ELSEWHERE}")
        if self.target.is_dir():
            raise OptionError(f"{self.target} is a folder", "--output names a file")
        if self.target.exists() and not self.target.is_file():
            raise OptionError(f"{self.target} is not a regular file", "without --output, text goes to standard output")
        if inside := next((parent for parent in self.target.parents if is_bundle(parent)), None):
            raise OptionError(f"{inside} is a bundle, and must hold nothing else", ELSEWHERE)
        if self.source.exists() and any(
            path.exists() and path.samefile(self.source) for path in (self.target, self.part, self.notes)
        ):
            raise OptionError(f"{self.source} would be both the input and the output", ELSEWHERE)
        if self.target.exists() and not self.force:
            raise OptionError(f"{self.target} exists", f"add --force to replace it, or {ELSEWHERE}")

    def _read_notes(self) -> None:
        """Resume an earlier part, if there is one.

        Raises:
            OptionError: if it was made from something else and ``force`` is not set.
        """
        size = os.fstat(self._file.fileno()).st_size
        try:
            values: Any = json.loads(self.notes.read_text(encoding="utf-8")) if size else {"lines": 0}
            lines = int(values["lines"])
            if not lines:
                return
            found = int(values["bytes"]), str(values["input_sha256"])
            if lines < 0 or found[0] < 0:
                raise ValueError("less than nothing")
            facts = dict(values["facts"])
        except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
            if self.force:
                return
            raise OptionError(f"{self.part} is in the way: no {self.notes.name} says what it is", ANEW) from error
        problem = ""
        if different := [name for name in self.facts if facts.get(name) != self.facts[name]]:
            old, new = facts.get(different[0]), self.facts[different[0]]
            problem = f"{self.part} was begun with {different[0]} {old}, now it is {new}"
        elif size < found[0]:
            problem = f"{self.part} has {size:,} bytes, but {found[0]:,} were written"
        if not problem:
            self.lines, (self._size, self._sha256) = lines, found
        elif not self.force:
            raise OptionError(problem, ANEW)

    def _write_notes(self) -> None:
        values = {"facts": self.facts, "lines": self.lines, "bytes": self._size, "input_sha256": self._sha256}
        with self._new_notes.open("w", encoding="utf-8") as file:
            json.dump(values, file, ensure_ascii=False, indent=1)
            file.flush()
            os.fsync(file.fileno())
        self._new_notes.replace(self.notes)


def _lock(descriptor: int) -> bool:
    """Lock the file; returns False if another process holds the lock, and True if the system has no locks."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # the file system has no locks
        return True
    return True
