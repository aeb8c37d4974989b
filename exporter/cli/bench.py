"""The command that measures a bundle: bench. Heavy imports are inside."""

from __future__ import annotations

from pathlib import Path

import click

from .options import json_option, quiet_option, threads_option
from .output import PASSED, show


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Sentences at once.")
@click.option("--length", type=click.IntRange(1), default=20, show_default=True, help="Of each, in tokens.")
@click.option("--steps", type=click.IntRange(1), default=40, show_default=True, help="Tokens to make for each.")
@click.option("--beams", type=click.IntRange(1), default=1, show_default=True, help="More than 1: that search, too.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="The median counts.")
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
    threads: int,
    as_json: bool,
    quiet: bool,
) -> int:
    """Measure how fast BUNDLE decodes: PyTorch without and with a cache, the step graph in a loop, the whole search.

    All make the same number of tokens, and take turns. For one sentence, the share says how much of the speed that the
    memory allows is reached: in every step all weights of the decoder are read. Without PyTorch its rows are left out.

    \b
    Example:
      mytx-export bench demo-bundle --batch 8 --beams 4
    """
    from ..bundle.open import open_bundle
    from ..decode.bench import bench as measure
    from ..runtimes.onnxruntime import RuntimeOptions
    from .terminal import Progress, print_bench

    opened = open_bundle(bundle, options=RuntimeOptions(threads=threads))
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
