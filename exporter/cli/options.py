"""Options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..formats.table import PRECISIONS

Decorator = Callable[[Any], Any]

key_option: Decorator = click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="NAME=KEY",
    help="Role NAME of the tensor KEY in the checkpoint, if names and shapes do not tell it. NAME is source_embedding, "
    "target_embedding, output_projection, positions, ignore, or a state-dict name of mytx's model. Repeatable.",
)
json_option: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on stdout, and everything else on stderr."
)
verbose_option: Decorator = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Print each run of each file, and the messages of PyTorch and onnxruntime.",
)
quiet_option: Decorator = click.option("-q", "--quiet", is_flag=True, help="Print only errors.")

threads_option: Decorator = click.option(
    "--threads",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Number of CPU threads; 0: the runtime chooses.",
)
provider_option: Decorator = click.option(
    "--provider",
    "providers",
    multiple=True,
    default=("cpu",),
    help="Execution provider of onnxruntime, such as cpu or cuda. Repeatable, the preferred one first.  [cpu]",
)
precision_option: Decorator = click.option(
    "--precision",
    type=click.Choice(list(PRECISIONS)),
    help="Precision of the ONNX files to run.  [the first that the bundle has of fp32, int8, int4, auto]",
)
plan_option: Decorator = click.option(
    "--plan",
    "level",
    type=click.Choice(["quick", "standard", "thorough"]),
    default="standard",
    show_default=True,
    help="How many test cases to compare with PyTorch: quick takes the fewest, thorough the most.",
)
case_option: Decorator = click.option(
    "--case",
    "own",
    multiple=True,
    metavar="FILE.npz",
    type=click.Path(path_type=Path),
    help="Your own test case: one array for each input of a graph, under its name. Repeatable.",
)


junit_option: Decorator = click.option(
    "--junit",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the result as JUnit XML for CI: one test for each file, runtime and group of cases.",
)


def together(*decorators: Decorator) -> Decorator:
    """Combine decorators into one. The help lists the options in this order."""
    return lambda command: functools.reduce(lambda found, decorate: decorate(found), reversed(decorators), command)


# Settings that a checkpoint does not store. An option that is not given is None; the default is then recorded.
checkpoint_options: Decorator = together(
    click.option("--nhead", type=click.IntRange(1), help="Number of attention heads. A state dict does not store it."),
    key_option,
    click.option(
        "--activation",
        type=click.Choice(["relu", "gelu", "silu"]),
        help="Activation of the feed-forward blocks.  [relu]",
    ),
    click.option("--norm-first/--norm-last", default=None, help="Layer norm before or after each block.  [norm-last]"),
    click.option("--layer-norm-eps", type=float, help="Epsilon of the layer norms.  [1e-5]"),
    click.option("--embedding-scale", type=float, help="Factor that multiplies the embeddings.  [sqrt(d_model)]"),
    click.option("--pad-id", type=click.IntRange(0), help="Id of the padding token.  [0]"),
    click.option("--bos-id", type=click.IntRange(0), help="Id of the token that starts a target.  [1]"),
    click.option("--eos-id", type=click.IntRange(0), help="Id of the token that ends a target.  [2]"),
    click.option(
        "--pooling",
        type=click.Choice(["sum", "avg", "last", "upstream-sum", "upstream-avg", "upstream-last"]),
        help="Pooling of a classification model; upstream-… includes padding positions.  [sum]",
    ),
    click.option(
        "--vocab",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="JSON file that maps tokens to ids; it is stored in the bundle.  [vocab.json beside the checkpoint]",
    ),
)

# Options that import the user's own code.
custom_options: Decorator = together(
    click.option(
        "--model",
        "factory",
        metavar="MODULE:NAME",
        help="Export your own model: a function without arguments that returns it, such as package.module:build. "
        "CHECKPOINT, if given, is its state dict.",
    ),
    click.option(
        "--contract",
        metavar="FILE.py",
        type=click.Path(path_type=Path),
        help="With --model: Python file that declares its graphs, their inputs and outputs, with "
        "mytx.exporter.contracts.  [its methods encode, decode and forward, if they take the usual arguments]",
    ),
    click.option(
        "--reference",
        metavar="MODULE:NAME",
        help="The class that CHECKPOINT was trained with, such as package.module:build. mytx also compares its own "
        "model of the checkpoint with it.",
    ),
    click.option("--checkpoint", "also", type=click.Path(path_type=Path), help="Same as the argument CHECKPOINT."),
)
task_options: Decorator = together(
    click.option(
        "--task-data",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="For int8, int4 and auto: text file of sentences to decode in these and in float32. Each line is a "
        "source, or a source, a tab and the right result.  [the demo's held-out words, or random ids]",
    ),
    click.option(
        "--target-agreement",
        type=click.FloatRange(0, 1),
        help="The share of these that must get the same tokens in both.  [int8: 0.9, int4: 0.8, auto: 0.99; none for "
        "random ids]",
    ),
)
model_option: Decorator = click.option(
    "--model",
    "factory",
    metavar="MODULE:NAME",
    help="For a bundle of your own model: the function that returns the model, such as package.module:build.",
)
