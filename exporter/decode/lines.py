"""Text line by line, in UTF-8 whatever the locale says, and in chunks that are worked on together. No torch here."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from ..errors import MytxError, OptionError

MOST = 1 << 20  # bytes in a line: no model takes so much, and a file without line ends must not fill the memory
READ = 1 << 16
STDIN = "standard input"

Item = TypeVar("Item")


@dataclass(frozen=True)
class Line:
    """A line.

    Attributes:
        number: from 1.
        text: without its end and without a byte order mark.
        raw: as it stands in the file, with both.
    """

    number: int
    text: str
    raw: bytes


def open_input(path: Path) -> BinaryIO:
    """The file at ``path``, to be read.

    Raises:
        OptionError: where that cannot be.
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
    """The lines of a file with their ends; one that is too long is cut, and :func:`decoded` refuses it."""
    return iter(lambda: file.readline(MOST + 1), b"")


def decoded(raw: Iterable[bytes], name: str, first: int = 1) -> Iterator[Line]:
    """Lines as text.

    Args:
        raw: with their ends.
        name: of where they come from, for messages.
        first: the number of the first.

    Raises:
        OptionError: naming the line that is not UTF-8, or too long.
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
    """``items`` in lists of ``size``; fewer at the end, where an error cuts them short, and where the next one would
    have to be waited for, which ``more`` says.

    Raises:
        MytxError: what ``items`` raises, after what came before it.
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
    """The lines of standard input, with their ends, as they arrive.

    Raises:
        OptionError: where it is closed.
    """

    def __init__(self) -> None:
        if sys.stdin is None:
            raise OptionError(
                "no text was given, and standard input is closed", "give a TEXT, or lines on standard input"
            )
        file: Any = getattr(sys.stdin, "buffer", sys.stdin)
        try:
            self._descriptor = int(file.fileno())
        except (OSError, AttributeError):  # something in its place: all of it is there
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
        """Whether something is there already: who writes a line and waits for the answer gets it."""
        if self._descriptor < 0 or self._over or b"\n" in self._held:
            return True
        try:
            return bool(select.select([self._descriptor], [], [], 0)[0])
        except OSError:  # a system that cannot tell
            return False
