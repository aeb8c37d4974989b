"""What commands say, and the codes that they exit with: shared by all of them."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import click

from ..formats.table import label
from ..parity.report import by_file

# Exit codes. Click's own errors and tracebacks would be 1, which here means one thing only.
PASSED, PARITY_FAILED, BAD_INPUT, BUG, INTERRUPTED = 0, 1, 2, 3, 130


class Result(Protocol):
    """What a command came to."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        ...


def show(result: Result, for_people: Callable[..., None], as_json: bool, quiet: bool = False) -> None:
    """The result as one JSON object, for people, or both: then what people read is on stderr."""
    with printing():
        if as_json:
            click.echo(json.dumps(result.to_dict(), allow_nan=False))
        if not quiet:
            for_people(result, to_stderr=as_json)
    report = getattr(result, "report", None)
    if quiet and report is not None and not report.passed:  # a failure is no chatter
        files = [label(*file) for file, rows in by_file(report.graphs).items() if not all(row.passed for row in rows)]
        complain(f"parity failed: {', '.join(files)}", "run it without --quiet, or see parity.html and --junit")


@contextlib.contextmanager
def causes(*, shown: bool) -> Iterator[None]:
    """Print what an error comes from: the whole story that the hint of a failed export promises."""
    try:
        yield
    except Exception as error:
        if shown and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        raise


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Let whoever reads our output go away (``| head``): that is no error, and changes no exit code."""
    try:
        yield
        if sys.stdout:
            sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:  # click and rich exit with 1 then: here, that parity failed
        by_click = type(sys.stdout).__name__.endswith("PacifyFlushWrapper")  # which it has put there
        if not (by_click or isinstance(error, BrokenPipeError) or isinstance(error.__context__, OSError)):
            raise  # somebody's own code has ended the program
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(message: str, hint: str = "") -> None:
    """One or two lines on stderr."""
    with contextlib.suppress(OSError):  # nobody reads it, and the exit code says it too
        click.echo(f"{click.style('error:', fg='red', bold=True)} {_one_line(message)}", err=True)
        if hint:
            click.echo(f"{click.style('hint:', fg='cyan')} {_one_line(hint)}", err=True)


def _one_line(text: str) -> str:
    return " ".join(filter(None, map(str.strip, text.splitlines())))


def write_log() -> str:
    """Write the traceback to a file; returns words that say where."""
    try:
        with tempfile.NamedTemporaryFile("w", prefix="mytx-", suffix=".log", delete=False, encoding="utf-8") as file:
            traceback.print_exc(file=file)
    except OSError:
        return ""
    return f", with {file.name}"
