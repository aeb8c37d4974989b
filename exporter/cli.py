"""The command line, and nothing else: options in, messages and exit codes out. torch is imported inside commands."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import checkpoint_options, json_option, key_option, quiet_option, verbose_option

if TYPE_CHECKING:
    from .check import BundleCheck
    from .pipeline import ExportResult

# Exit codes. Click's own errors and tracebacks would be 1, which here means one thing only.
PASSED, PARITY_FAILED, BAD_INPUT, BUG, INTERRUPTED = 0, 1, 2, 3, 130
IMPATIENCE = 2.0  # seconds within which a second Ctrl-C is the first one again

SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "token_normalize_func": lambda token: token.replace("_", "-"),
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit: 0 passed, 1 parity failed, 2 bad input, 3 a bug in mytx, 130 interrupted."""
    # Threads that spin while they wait make small models 20 times slower on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path need not be text: show it somehow, rather than fail
        sys.stdout.reconfigure(errors="backslashreplace")
    interrupt = _Interrupt()
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, interrupt)
    sys.exit(_run(arguments, interrupt))


class _Interrupt:
    """What Ctrl-C does: once. Pressed again at once, it must not break off the cleaning up."""

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
    """Run the command and turn what is raised into messages; returns the exit code."""
    try:
        code = None
        with _printing():
            code = cli(arguments, prog_name="mytx-export", standalone_mode=False)
        return code if isinstance(code, int) else PASSED
    except (Exception, KeyboardInterrupt) as error:
        # Python itself wraps an interrupt in another error where it comes in the middle of an import.
        if interrupt.pressed or isinstance(error, (click.Abort, KeyboardInterrupt)):
            with contextlib.suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # pressed again: no traceback on the way out
            complain("interrupted; no unfinished bundle is left behind")
            return INTERRUPTED
        return _explain(error)


def _explain(error: Exception) -> int:
    """Say what went wrong and what to do next; returns the exit code."""
    from ..models.errors import MytxError

    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
    elif isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        complain(error.format_message(), f"see {context.command_path if context else 'mytx-export'} --help")
    elif isinstance(error, MytxError):
        complain(error.message, error.hint)
    elif isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        hint = "free some space, or write elsewhere" if full else "check the path, and what may be done there"
        complain(f"{error.strerror or error}{where}", hint)
    else:
        complain(f"a bug in mytx: {type(error).__name__}: {error}", f"please report it{_write_log()}")
        return BUG
    return BAD_INPUT


@contextlib.contextmanager
def _printing() -> Iterator[None]:
    """Let whoever reads our output go away (``| head``): that is no error, and changes no exit code."""
    try:
        yield
        if sys.stdout:
            sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # click and rich exit with 1 then, which here means that parity failed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(message: str, hint: str = "") -> None:
    """One or two lines on stderr."""
    with contextlib.suppress(OSError):  # nobody reads it, and the exit code says it too
        click.echo(f"{click.style('error:', fg='red', bold=True)} {_one_line(message)}", err=True)
        if hint:
            click.echo(f"{click.style('hint:', fg='cyan')} {_one_line(hint)}", err=True)


def _one_line(text: str) -> str:
    return " ".join(filter(None, map(str.strip, text.splitlines())))


def _write_log() -> str:
    """Write the traceback to a file; returns words that say where."""
    try:
        with tempfile.NamedTemporaryFile("w", prefix="mytx-", suffix=".log", delete=False, encoding="utf-8") as file:
            traceback.print_exc(file=file)
    except OSError:
        return ""
    return f", with {file.name}"


@click.group(context_settings=SETTINGS)
@click.version_option(package_name="mytx", prog_name="mytx-export")
def cli() -> None:
    """Take an encoder-decoder Transformer out of PyTorch: export it, and prove that the files are right.

    Exit codes: 0 all passed; 1 parity failed, and nothing else; 2 bad input, or an export that failed; 3 a bug in
    mytx; 130 interrupted.
    """


@cli.command()
@click.argument("checkpoint", required=False, type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder for the bundle.")
@checkpoint_options
@click.option(
    "--component",
    "components",
    multiple=True,
    type=click.Choice(["encoder", "decoder", "full"]),
    help="Graph to export. Repeatable.  [all that the model has]",
)
@click.option("--opset", type=int, default=18, show_default=True, help="ONNX opset, 18 to 25.")
@click.option(
    "--masks",
    help="Mask inputs of a bare MyTransformer: a comma list of its mask arguments, each optionally :bool, :float "
    "or :3d.  [tgt_mask and the three key padding masks]",
)
@click.option("--no-verify", is_flag=True, help="Do not check parity; the result says passed: null.")
@click.option("--force", is_flag=True, help="Replace a bundle that is there.")
@json_option
@verbose_option
@quiet_option
def onnx(
    checkpoint: Path | None,
    output: Path,
    components: tuple[str, ...],
    opset: int,
    masks: str | None,
    no_verify: bool,
    force: bool,
    as_json: bool,
    verbose: bool,
    quiet: bool,
    **reading: Any,
) -> int:
    """Export CHECKPOINT to ONNX and verify the files in onnxruntime.

    CHECKPOINT is a .pt, .pkl or .safetensors file with a state dict, or a folder that save_model wrote; without one,
    the demo model that comes with mytx is exported. OUTPUT gets encoder.onnx, decoder.onnx and full.onnx, moved there
    only when they are complete and equal to PyTorch; a bundle that is not goes to OUTPUT.failed.

    \b
    Examples:
      mytx-export onnx -o demo-bundle
      mytx-export onnx model.pt --nhead 8 -o bundle
    """
    if verbose and quiet:
        raise click.UsageError("--verbose and --quiet exclude each other.")
    from .terminal import Progress, print_result

    with Progress(shown=not (quiet or verbose)) as progress, _causes(shown=verbose):
        progress("Starting PyTorch")
        if checkpoint is None:
            from ..models.demo_files import demo_folder

            checkpoint = demo_folder()
        result = _export(checkpoint, output, components, opset, masks, no_verify, force, verbose, reading, progress)
    _print(result, print_result, as_json, quiet)
    return PARITY_FAILED if result.passed is False else PASSED


def _export(
    checkpoint: Path,
    output: Path,
    components: tuple[str, ...],
    opset: int,
    masks: str | None,
    no_verify: bool,
    force: bool,
    verbose: bool,
    reading: dict[str, Any],
    progress: Callable[[str], None],
) -> ExportResult:
    from ..models.errors import MytxError
    from .bundle import Staging

    with Staging(output, force=force):
        pass  # an output that cannot be is refused before minutes of work
    if not checkpoint.exists():  # and a mistyped name before PyTorch is loaded
        raise MytxError(f"{checkpoint}: no such file", "check the path to the checkpoint")
    from ..models import Vocabulary, find_vocab, load_checkpoint
    from .onnx_format import check_opset
    from .pipeline import export_onnx

    check_opset(opset)
    progress(f"Loading {checkpoint.name}")
    model = load_checkpoint(checkpoint, **reading)
    file = reading["vocab"] or find_vocab(checkpoint)
    return export_onnx(
        model,
        output,
        components=components,
        opset=opset,
        masks=masks,
        verify=not no_verify,
        force=force,
        vocabulary=Vocabulary.read(file) if file else None,
        verbose=verbose,
        progress=progress,
    )


def _print(result: ExportResult | BundleCheck, for_people: Callable[..., None], as_json: bool, quiet: bool) -> None:
    """The result as one JSON object, for people, or both: then what people read is on stderr."""
    with _printing():
        if as_json:
            click.echo(json.dumps(result.to_dict(), allow_nan=False))
        if not quiet:
            for_people(result, to_stderr=as_json)


@contextlib.contextmanager
def _causes(*, shown: bool) -> Iterator[None]:
    """Print what an error comes from: the whole story that the hint of a failed export promises."""
    try:
        yield
    except Exception as error:
        if shown and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        raise


@cli.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@json_option
@verbose_option
@quiet_option
def verify(bundle: Path, as_json: bool, verbose: bool, quiet: bool) -> int:
    """Check that BUNDLE is whole and still gives what PyTorch gave. Needs no PyTorch.

    Every file is held against the manifest, then the stored reference cases are run in onnxruntime. The hashes guard
    against accidents, not attackers: whoever can change a file can change the manifest too.

    \b
    Example:
      mytx-export verify bundle
    """
    from .check import verify_bundle
    from .terminal import Progress, print_check

    with Progress(shown=not (quiet or verbose)) as progress:
        result = verify_bundle(bundle, verbose=verbose, progress=progress)
    _print(result, print_check, as_json, quiet)
    return PASSED if result.passed else PARITY_FAILED


@cli.command()
@click.argument("path", type=click.Path(path_type=Path))
@key_option
@json_option
def inspect(path: Path, keys: tuple[str, ...], as_json: bool) -> None:
    """Say what PATH is: a checkpoint, a folder that save_model wrote, or a bundle.

    Of a checkpoint: its layout and sizes, what it does not say, and the command to run next. Of a bundle: its graphs,
    what each takes and gives, versions and parity.

    \b
    Example:
      mytx-export inspect model.pt
    """
    from .inspecting import inspect_path
    from .terminal import print_inspection

    found = inspect_path(path, keys)
    if as_json:
        click.echo(json.dumps(found, allow_nan=False, ensure_ascii=False))
    else:
        print_inspection(found)


@cli.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--max-length", type=click.IntRange(1), help="Of the output, in tokens.  [256, or what the model has]")
@click.option(
    "--pad-to",
    type=click.IntRange(1),
    help="Fill the source with padding, not masked, to this many tokens: for a model that was trained so.",
)
@json_option
def run(bundle: Path, texts: tuple[str, ...], max_length: int | None, pad_to: int | None, as_json: bool) -> None:
    """Decode each TEXT greedily with the graphs in BUNDLE. Needs no PyTorch.

    Without TEXT, lines are read from standard input, in UTF-8. One line comes out for each text.

    \b
    Examples:
      mytx-export run demo-bundle knight transformer
      mytx-export run bundle < sentences.txt
    """
    from .opened import open_bundle

    opened = open_bundle(bundle)
    for text in texts or _lines():
        # A blank line among others stays one: the output has a line for each of the input's.
        output = opened.translate(text, max_length, pad_to) if texts or text.strip() else ""
        click.echo(json.dumps({"text": text, "output": output}, ensure_ascii=False) if as_json else output)


def _lines() -> Iterator[str]:
    """The lines of standard input, which is UTF-8 whatever the locale says, without their ends."""
    from ..models.errors import MytxError

    if sys.stdin is None:
        raise MytxError("no text was given, and standard input is closed", "give a TEXT, or lines on standard input")
    for number, line in enumerate(getattr(sys.stdin, "buffer", sys.stdin), start=1):
        try:
            text = line if isinstance(line, str) else line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise MytxError(f"line {number} of standard input is not UTF-8", "convert the text to UTF-8") from error
        yield text.rstrip("\r\n")
