"""The command line: all commands, and errors as messages and exit codes. torch is imported inside commands."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import signal
import sys
import time

import click

from . import bench as bench_command
from . import bundle as bundle_commands
from . import export as export_commands
from . import run as run_command
from .output import BAD_INPUT, BUG, INTERRUPTED, PASSED, complain, printing, write_log

IMPATIENCE = 2.0  # seconds in which a second Ctrl-C is ignored

SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "token_normalize_func": lambda token: token.replace("_", "-"),
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit: 0 passed, 1 parity failed, 2 bad input, 3 a bug in mytx, 130 interrupted."""
    # Spinning threads make small models 20 times slower on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path may not be valid text: escape it instead of failing
        sys.stdout.reconfigure(errors="backslashreplace")
    interrupt = _Interrupt()
    with contextlib.suppress(ValueError):  # raised outside the main thread
        signal.signal(signal.SIGINT, interrupt)
    sys.exit(_run(arguments, interrupt))


class _Interrupt:
    """Handler of Ctrl-C. A second press shortly after the first is ignored, so that it does not stop the cleanup."""

    def __init__(self) -> None:
        self.last = -math.inf

    def __call__(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if now - self.last > IMPATIENCE:
            self.last = now
            raise KeyboardInterrupt

    @property
    def pressed(self) -> bool:
        return self.last > 0


def _run(arguments: list[str] | None, interrupt: _Interrupt) -> int:
    """Run the command, print errors as messages, and return the exit code."""
    try:
        code = None
        with printing():
            code = cli(arguments, prog_name="mytx-export", standalone_mode=False)
        return code if isinstance(code, int) else PASSED
    except BaseException as error:  # Python's own exit code, 1, would mean that parity failed
        # Python wraps an interrupt in another error if it comes in the middle of an import.
        if interrupt.pressed or isinstance(error, (click.Abort, KeyboardInterrupt)):
            with contextlib.suppress(ValueError):  # raised outside the main thread
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # no traceback if it is pressed again
            complain("interrupted; no unfinished bundle is left behind")
            return INTERRUPTED
        return _explain(error)


def _explain(error: BaseException) -> int:
    """Print what went wrong and what to do next, and return the exit code."""
    from ...models.errors import MytxError

    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
    elif isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        complain(error.format_message(), f"see {context.command_path if context else 'mytx-export'} --help")
    elif isinstance(error, MytxError):
        complain(error.message, error.hint)
    elif isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("mytx"):
        name = error.name.partition(".")[0]
        without = "; inspect, run, bench, and verify with the stored cases, work without it" if name == "torch" else ""
        complain(f"this needs {name}, which is not installed", f"pip install {name}{without}")
    elif isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        hint = "free some space, or write elsewhere" if full else "check the path and its permissions"
        complain(f"{error.strerror or error}{where}", hint)
    else:
        complain(f"a bug in mytx: {type(error).__name__}: {error}", f"please report it{write_log()}")
        return BUG
    return BAD_INPUT


@click.group(context_settings=SETTINGS)
@click.version_option(package_name="mytx", prog_name="mytx-export")
def cli() -> None:
    """Export an encoder-decoder Transformer from PyTorch, and prove that the files compute what PyTorch computes.

    Exit codes: 0 all passed; 1 parity failed, and nothing else; 2 bad input, or an export that failed; 3 a bug in
    mytx; 130 interrupted.
    """


for command in (*export_commands.COMMANDS, *bundle_commands.COMMANDS, run_command.run, bench_command.bench):
    cli.add_command(command)
