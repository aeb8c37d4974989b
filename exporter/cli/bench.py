"""The command ``bench``, which measures decoding speed. Heavy imports are inside the function."""

from __future__ import annotations

from pathlib import Path

import click

from .options import json_option, precision_option, quiet_option, threads_option
from .output import PASSED, show


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Number of sentences in a batch.")
@click.option(
    "--length", type=click.IntRange(1), default=20, show_default=True, help="Length of each source, in tokens."
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=40,
    show_default=True,
    help="Number of tokens to decode for each sentence.",
)
@click.option(
    "--beams",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of beams; more than 1 also measures beam search.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Number of measurements; the median is reported.",
)
@precision_option
@threads_option
@json_option
@quiet_option
def bench(
    bundle: Path,
    batch: int,
    length: int,
    steps: int,
    beams: int,
    rounds: int,
    precision: str | None,
    threads: int,
    as_json: bool,
    quiet: bool,
) -> int:
    """Measure how fast BUNDLE decodes: PyTorch without and with a cache, the step graph in a loop, the whole search.

    All decode the same number of tokens, in turns. Every step reads all weights of the decoder, so the memory's read
    speed limits the decoding of one sentence; "of memory limit" is the share of it that is reached. Without PyTorch
    installed, its rows are left out.

    \b
    Example:
      mytx-export bench demo-bundle --batch 8 --beams 4
    """
    from ..bundle.open import open_bundle
    from ..decode.bench import bench as measure
    from ..runtimes.onnxruntime import RuntimeOptions
    from .terminal import Progress, print_bench

    opened = open_bundle(bundle, precision=precision, options=RuntimeOptions(threads=threads))
    with Progress(shown=not quiet) as progress:
        result = measure(
            opened,
            batch=batch,
            length=length,
            steps=steps,
            beams=beams,
            threads=threads,
            rounds=rounds,
            progress=progress,
        )
    show(result, print_bench, as_json, quiet)
    return PASSED
