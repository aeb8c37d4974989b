"""Options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Decorator = Callable[[Any], Any]

key_option: Decorator = click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="NAME=KEY",
    help="Which tensor is what, where names and shapes leave it open: source_embedding, target_embedding, "
    "output_projection, positions, ignore, or a state-dict name of ours. Repeatable.",
)
json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="JSON on stdout; all else on stderr.")
verbose_option: Decorator = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Print each run of each file, and the messages of PyTorch and onnxruntime.",
)
quiet_option: Decorator = click.option("-q", "--quiet", is_flag=True, help="Only errors.")

threads_option: Decorator = click.option(
    "--threads", type=click.IntRange(0), default=0, show_default=True, help="Threads; 0 leaves it to the runtime."
)
provider_option: Decorator = click.option(
    "--provider",
    "providers",
    multiple=True,
    default=("cpu",),
    help="Execution provider of onnxruntime: cpu, cuda and so on. Repeatable, the preferred one first.  [cpu]",
)
plan_option: Decorator = click.option(
    "--plan",
    "level",
    type=click.Choice(["quick", "standard", "thorough"]),
    default="standard",
    show_default=True,
    help="How many cases to try.",
)
case_option: Decorator = click.option(
    "--case",
    "own",
    multiple=True,
    metavar="FILE.npz",
    type=click.Path(path_type=Path),
    help="A case of your own: an array for each input of a graph, by name. Repeatable.",
)


junit_option: Decorator = click.option(
    "--junit",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the result as JUnit XML, for CI: a test for each group of cases of each file in each runtime.",
)


def together(*decorators: Decorator) -> Decorator:
    """Several decorators as one, in the order in which help shows them."""
    return lambda command: functools.reduce(lambda found, decorate: decorate(found), reversed(decorators), command)


# What a checkpoint cannot say of itself. Options that are not given are None: the default is then recorded.
checkpoint_options: Decorator = together(
    click.option("--nhead", type=click.IntRange(1), help="Number of attention heads; no checkpoint says it."),
    key_option,
    click.option(
        "--activation", type=click.Choice(["relu", "gelu", "silu"]), help="Of the feed-forward blocks.  [relu]"
    ),
    click.option("--norm-first/--norm-last", default=None, help="Norm before each block, or after it.  [norm-last]"),
    click.option("--layer-norm-eps", type=float, help="Added to the variance in the norms.  [1e-5]"),
    click.option("--embedding-scale", type=float, help="Factor on the embeddings.  [sqrt(d_model)]"),
    click.option("--pad-id", type=click.IntRange(0), help="Id of padding.  [0]"),
    click.option("--bos-id", type=click.IntRange(0), help="Id that starts a target.  [1]"),
    click.option("--eos-id", type=click.IntRange(0), help="Id that ends a target.  [2]"),
    click.option(
        "--pooling",
        type=click.Choice(["sum", "avg", "last", "upstream-sum", "upstream-avg", "upstream-last"]),
        help="Of a classification model; upstream-… pools over padding too.  [sum]",
    ),
    click.option(
        "--vocab",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Vocabulary, token to id, as JSON.  [vocab.json beside the checkpoint]",
    ),
)

# A user's own code, for models and classes that are not ours.
custom_options: Decorator = together(
    click.option(
        "--model",
        "factory",
        metavar="MODULE:NAME",
        help="Your own model: a function without arguments that makes it, package.module:build. CHECKPOINT is then its "
        "state dict.",
    ),
    click.option(
        "--contract",
        metavar="FILE.py",
        type=click.Path(path_type=Path),
        help="With --model: its graphs, see mytx.exporter.contracts.  [encode, decode and forward, where these take "
        "the usual arguments]",
    ),
    click.option(
        "--reference",
        metavar="MODULE:NAME",
        help="The class that CHECKPOINT was trained in: what mytx reads from it is verified against that, too.",
    ),
    click.option("--checkpoint", "also", type=click.Path(path_type=Path), help="The same as CHECKPOINT."),
)
model_option: Decorator = click.option(
    "--model",
    "factory",
    metavar="MODULE:NAME",
    help="Of a bundle with a model of your own: the function that makes it.",
)
