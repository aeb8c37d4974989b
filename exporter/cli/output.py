"""Output and exit codes that all commands share."""

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

# Exit codes. Click and Python exit with 1 for any error; here 1 means only that parity failed.
PASSED, PARITY_FAILED, BAD_INPUT, BUG, INTERRUPTED = 0, 1, 2, 3, 130


class Result(Protocol):
    """The result of a command."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        ...


def show(result: Result, for_people: Callable[..., None], as_json: bool, quiet: bool = False) -> None:
    """Print the result: as text, or with ``as_json`` as one JSON object on stdout and as text on stderr."""
    with printing():
        if as_json:
            click.echo(json.dumps(result.to_dict(), allow_nan=False))
        if not quiet:
            for_people(result, to_stderr=as_json)
    report = getattr(result, "report", None)
    if quiet and report is not None and not report.passed:  # --quiet does not hide a failure
        files = [label(*file) for file, rows in by_file(report.graphs).items() if not all(row.passed for row in rows)]
        files += [f"{one.file} on {one.data}" for one in report.task if not one.passed]
        complain(f"parity failed: {', '.join(files)}", "run it without --quiet, or see parity.html and --junit")


@contextlib.contextmanager
def causes(*, shown: bool) -> Iterator[None]:
    """With ``shown``, print the traceback of an error's cause. The hint of a failed export refers to it."""
    try:
        yield
    except Exception as error:
        if shown and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        raise


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Ignore that the reader of the output has closed the pipe, as ``| head`` does. The exit code stays the same."""
    try:
        yield
        if sys.stdout:
            sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as error:  # click and rich exit with 1 then, our code for failed parity
        by_click = type(sys.stdout).__name__.endswith("PacifyFlushWrapper")  # click sets it after a broken pipe
        if not (by_click or isinstance(error, BrokenPipeError) or isinstance(error.__context__, OSError)):
            raise  # a user's own code has called sys.exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(message: str, hint: str = "") -> None:
    """Print an error, and a hint if there is one: one line each, on stderr."""
    with contextlib.suppress(OSError):  # stderr is closed; the exit code remains
        click.echo(f"{click.style('error:', fg='red', bold=True)} {_one_line(message)}", err=True)
        if hint:
            click.echo(f"{click.style('hint:', fg='cyan')} {_one_line(hint)}", err=True)


def _one_line(text: str) -> str:
    return " ".join(filter(None, map(str.strip, text.splitlines())))


def write_log() -> str:
    """Write the traceback to a temporary file, and return the end of a sentence that names the file."""
    try:
        with tempfile.NamedTemporaryFile("w", prefix="mytx-", suffix=".log", delete=False, encoding="utf-8") as file:
            traceback.print_exc(file=file)
    except OSError:
        return ""
    return f", with {file.name}"
