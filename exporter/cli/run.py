"""The command ``run``, which decodes text with a bundle. Heavy imports are inside the functions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import json_option, precision_option, provider_option, quiet_option, threads_option
from .output import INTERRUPTED, PASSED, complain

if TYPE_CHECKING:
    from ..decode.lines import Line
    from ..decode.text import Decoding


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--input", "source", type=click.Path(path_type=Path), help="Text file in UTF-8 with one text per line.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="File for the results of --input. It is named OUTPUT.part until it is complete.  [standard output]",
)
@click.option("--force", is_flag=True, help="Replace OUTPUT, and an OUTPUT.part from another input or other options.")
@click.option("--num-beams", type=click.IntRange(1), default=1, show_default=True, help="Number of beams; 1: greedy.")
@click.option(
    "--max-length",
    type=click.IntRange(1),
    help="Maximum length of an output, in tokens.  [256, or less if the model has fewer positions]",
)
@click.option(
    "--min-length", type=click.IntRange(0), default=0, show_default=True, help="Minimum length of an output, in tokens."
)
@click.option(
    "--length-penalty",
    type=float,
    default=1.0,
    show_default=True,
    help="Exponent: scores are divided by length ** LENGTH_PENALTY. 0 ignores the length; more favours long outputs.",
)
@click.option(
    "--num-hypotheses",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of results for each text, best first, one per line; at most --num-beams.",
)
@click.option(
    "--pad-to",
    type=click.IntRange(1),
    help="Pad each source to this length, in tokens, without a padding mask: for a model that was trained so.",
)
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Number of texts in a batch.")
@precision_option
@threads_option
@provider_option
@json_option
@quiet_option
def run(
    bundle: Path,
    texts: tuple[str, ...],
    source: Path | None,
    output: Path | None,
    force: bool,
    num_beams: int,
    max_length: int | None,
    min_length: int,
    length_penalty: float,
    num_hypotheses: int,
    pad_to: int | None,
    batch_size: int,
    precision: str | None,
    threads: int,
    providers: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> int:
    """Decode each TEXT with the graphs in BUNDLE: greedily, or with beam search. Needs no PyTorch.

    Without TEXT and --input, run reads lines from standard input. Text is UTF-8. A blank line gives a blank line. With
    --json, each line of output is a JSON object with text, output, score, ids and, if there are several, hypotheses.

    With --output, an interrupted run continues where it stopped if you give the same command again.

    \b
    Examples:
      mytx-export run demo-bundle knight transformer
      mytx-export run bundle --num-beams 4 < sentences.txt
      mytx-export run bundle --num-beams 4 --input sentences.txt --output translated.txt
    """
    if texts and source:
        raise click.UsageError("TEXT and --input exclude each other.")
    if output and not source:
        raise click.UsageError("--output goes with --input; other results go to standard output.")
    if force and not output:
        raise click.UsageError("--force goes with --output.")
    from ..bundle.generation import SearchOptions
    from ..bundle.open import open_bundle
    from ..decode.text import Decoding
    from ..runtimes.onnxruntime import RuntimeOptions, provider_names

    provider_names(providers)
    opened = open_bundle(bundle, precision=precision, options=RuntimeOptions(threads=threads, providers=providers))
    search = SearchOptions(num_beams, max_length, min_length, length_penalty, num_hypotheses)
    decoding = Decoding(opened, search, batch_size, pad_to, as_json).checked()
    try:
        if source and output:
            _to_file(decoding, source, output, force, quiet)
        else:
            _to_standard_output(decoding, texts, source)
    except KeyboardInterrupt:
        complain("interrupted", "the same command goes on where this one stopped" if output else "")
        return INTERRUPTED
    return PASSED


def _to_file(decoding: Decoding, source: Path, output: Path, force: bool, quiet: bool) -> None:
    from ..decode.text import decode_file
    from .terminal import Progress

    def note(message: str) -> None:
        if not quiet:
            click.echo(f"note: {message}", err=True)

    with Progress(shown=not quiet) as progress:
        done = decode_file(decoding, source, output, force=force, progress=progress, note=note)
    note(f"{done.output}: {done.lines:,} lines, {done.lines - done.resumed:,} of them in {done.seconds:.1f} s")


def _to_standard_output(decoding: Decoding, texts: tuple[str, ...], source: Path | None) -> None:
    from contextlib import ExitStack

    from ..decode.lines import STDIN, Line, StandardInput, decoded, open_input, raw_lines
    from ..errors import OptionError

    if any(not text.strip() for text in texts):
        raise OptionError("the text is empty", "give at least one token")
    with ExitStack() as stack:
        if texts:
            given: Iterator[Line] = (Line(number, text, b"") for number, text in enumerate(texts, start=1))
            found = decoding.chunks(given, lambda line: f"text {line.number}" if len(texts) > 1 else "")
        elif source:
            lines = decoded(raw_lines(stack.enter_context(open_input(source))), str(source))
            found = decoding.chunks(lines, lambda line: f"line {line.number} of {source}")
        else:
            stdin = StandardInput()
            found = decoding.chunks(decoded(stdin, STDIN), lambda line: f"line {line.number} of {STDIN}", stdin.more)
        for _, text in found:
            click.echo(text, nl=False)
            if sys.stdout:  # None if the parent process closed it
                sys.stdout.flush()
