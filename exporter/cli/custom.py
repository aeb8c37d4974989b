"""A user's own model on the command line: ``--model``, ``--contract`` and ``--reference``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..graphs.exportable import Exportable


def check_custom(
    factory: str | None,
    contract: Path | None,
    reference: str | None,
    checkpoint: Path | None,
    no_verify: bool,
    reading: dict[str, Any],
) -> None:
    """Raise UsageError for options that exclude each other."""
    if factory is None and contract is not None:
        raise click.UsageError("--contract is for --model: mytx knows the contracts of its own models.")
    if factory is not None and reference is not None:
        raise click.UsageError("--model is itself the reference: omit --reference.")
    if factory is not None and (given := [name for name, value in reading.items() if value not in (None, (), False)]):
        raise click.UsageError(f"--{given[0].removesuffix('s').replace('_', '-')} is for checkpoints without --model.")
    if reference is not None and checkpoint is None:
        raise click.UsageError("--reference needs a CHECKPOINT.")
    if reference is not None and no_verify:
        raise click.UsageError("--reference and --no-verify exclude each other.")


def make_custom(
    factory: str, checkpoint: Path | None, contract: Path | None, verbose: bool, progress: Callable[[str], None]
) -> Exportable:
    """A user's own model with its graphs: those of ``contract``, or what its methods tell."""
    from ..graphs.exportable import custom_model
    from ..graphs.inferred import infer_graphs
    from ..graphs.user_code import load_weights, make_module, read_contract, signature_of
    from ..quiet import quiet

    progress(f"Making {factory}")
    with quiet(verbose):
        module = make_module(factory)
        if checkpoint is not None:
            load_weights(module, checkpoint, factory)
        graphs = read_contract(contract, module) if contract else infer_graphs(module)
        subject = custom_model(module, graphs, source=factory)
    for item in graphs if contract is None else ():
        click.echo(f"{item.contract.graph}: {signature_of(item.contract)}", err=True)
    return subject
