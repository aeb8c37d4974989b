"""An output file that is written over hours: interrupted at any moment, it goes on where it stopped. No torch here.

While it is made it is ``OUTPUT.part``, and ``OUTPUT.part.json`` says what it is made from and how much of it counts.
That file is replaced after each chunk, once the chunk is on the disk; whatever stands behind what it counts, half a
line say, is cut off before going on. When all is done, ``OUTPUT.part`` is renamed.
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
    """The output of a command that turns an input's lines into text.

    As a context manager; nothing is left behind where no line was done.

    Args:
        target: where the finished file is to be.
        source: the input.
        facts: what the result depends on, by names for people; JSON values.
        force: replace a finished file, and a part that was made from something else.

    Attributes:
        lines: of the input that are done.

    Raises:
        OptionError: where the file may not be written; on entering, where what was begun does not fit.
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
        self._size = 0  # of the part: bytes that count
        self._digest = hashlib.sha256()  # of the input's lines that are done
        self._sha256 = self._digest.hexdigest()

    def __enter__(self) -> PartialOutput:
        self._open()
        try:
            self._check_target()  # another process may have finished meanwhile
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
        """Open the part for this process alone."""
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
            self._file.close()  # its writer has finished and moved it between the two: it is no part any more

    def _remove(self) -> None:
        for path in (self.part, self.notes, self._new_notes):
            path.unlink(missing_ok=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with undisturbed():
            if not self._file.closed:
                self._new_notes.unlink(missing_ok=True)  # of a disk that is full
                if not self.lines:
                    self._remove()
            self._file.close()

    def rest(self, start: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
        """The input's lines that are not done yet.

        Args:
            start: gives the lines of the input, from the first.

        Raises:
            OptionError: where those that are done are not the ones that the part was made from.
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
        """Write ``text``, whole lines, which came of the lines ``raw`` of the input."""
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
        """Everything is there: move it to its place; returns the place."""
        with undisturbed():
            self.part.replace(self.target)
            self.notes.unlink(missing_ok=True)
            self._file.close()  # last: until then nobody else may begin
        return self.target

    def _check_target(self) -> None:
        folder = self.target.parent
        if not folder.is_dir():
            raise OptionError(f"{folder} is not a folder that is there", f"make it, or {ELSEWHERE}")
        if self.target.is_dir():
            raise OptionError(f"{self.target} is a folder", "--output names a file")
        if self.target.exists() and not self.target.is_file():
            raise OptionError(f"{self.target} is not a regular file", "without --output, text goes to standard output")
        if inside := next((parent for parent in self.target.parents if is_bundle(parent)), None):
            raise OptionError(f"{inside} is a bundle, and must hold nothing else", ELSEWHERE)
        if self.source.exists() and any(
            path.exists() and path.samefile(self.source) for path in (self.target, self.part, self.notes)
        ):
            raise OptionError(f"{self.source} would be both the input and written to", ELSEWHERE)
        if self.target.exists() and not self.force:
            raise OptionError(f"{self.target} exists", f"add --force to replace it, or {ELSEWHERE}")

    def _read_notes(self) -> None:
        """Take over what was begun."""
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
            problem = f"{self.part} has {size:,} bytes, {found[0]:,} were written"
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
    """Whether this process is now the only one that writes; True where the system has no such locks."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
