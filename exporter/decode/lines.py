"""Reading text by lines and in chunks, as UTF-8 in any locale. No torch here."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from ..errors import MytxError, OptionError

MOST = 1 << 20  # bytes in a line. No model takes more, and a file without line ends must not fill the memory.
READ = 1 << 16  # bytes to read at once from standard input
STDIN = "standard input"

Item = TypeVar("Item")


@dataclass(frozen=True)
class Line:
    """A line of text.

    Attributes:
        number: line number, from 1.
        text: text without line end and byte order mark.
        raw: bytes of the line in the file, with both.
    """

    number: int
    text: str
    raw: bytes


def open_input(path: Path) -> BinaryIO:
    """Open the file at ``path`` for reading.

    Raises:
        OptionError: if it cannot be opened.
    """
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise OptionError(f"{path}: no such file", "check the path of --input") from error
    except IsADirectoryError as error:
        raise OptionError(f"{path} is a folder", "--input takes a text file") from error
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}", "--input takes a text file") from error


def raw_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file with their line ends. A line that is too long is cut; :func:`decoded` then refuses it."""
    return iter(lambda: file.readline(MOST + 1), b"")


def decoded(raw: Iterable[bytes], name: str, first: int = 1) -> Iterator[Line]:
    """Decode lines from UTF-8.

    Args:
        raw: lines with their line ends.
        name: name of the file, for messages.
        first: number of the first line.

    Raises:
        OptionError: if a line is not UTF-8 or is too long; the message names it.
    """
    for number, line in enumerate(raw, start=first):
        if len(line) > MOST:
            raise OptionError(f"line {number} of {name} has more than {MOST:,} bytes", "is it a text file?")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise OptionError(f"line {number} of {name} is not UTF-8", "convert the text to UTF-8") from error
        yield Line(number, text.rstrip("\r\n"), line)


def in_chunks(items: Iterable[Item], size: int, more: Callable[[], bool] = lambda: True) -> Iterator[list[Item]]:
    """Split ``items`` into lists of ``size``.

    A list is shorter at the end, before an error, and when ``more()`` says that the next item is not there yet.

    Raises:
        MytxError: the error that ``items`` raises, after the items before it.
    """
    chunk: list[Item] = []
    try:
        for item in items:
            chunk.append(item)
            if len(chunk) == size or not more():
                yield chunk
                chunk = []
    except MytxError:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


class StandardInput:
    """The lines of standard input with their line ends, as they arrive.

    Raises:
        OptionError: if standard input is closed.
    """

    def __init__(self) -> None:
        if sys.stdin is None:
            raise OptionError(
                "no text was given, and standard input is closed", "give a TEXT, or lines on standard input"
            )
        file: Any = getattr(sys.stdin, "buffer", sys.stdin)
        try:
            self._descriptor = int(file.fileno())
        except (OSError, AttributeError):  # replaced by an object without descriptor: nothing to wait for
            self._descriptor = -1
        self._file = file
        self._held = b""
        self._over = False

    def __iter__(self) -> Iterator[bytes]:
        if self._descriptor < 0:
            for line in self._file:
                yield line.encode() if isinstance(line, str) else line
            return
        while True:
            end = self._held.find(b"\n") + 1
            if not end and not self._over and len(self._held) <= MOST:
                data = os.read(self._descriptor, READ)
                self._held += data
                self._over = not data
                continue
            if not self._held:
                return
            line, self._held = (self._held[:end], self._held[end:]) if end else (self._held, b"")
            yield line

    def more(self) -> bool:
        """Whether more input is there already. If not, the lines so far are decoded without waiting for more."""
        if self._descriptor < 0 or self._over or b"\n" in self._held:
            return True
        try:
            return bool(select.select([self._descriptor], [], [], 0)[0])
        except OSError:  # a system that cannot tell
            return False
