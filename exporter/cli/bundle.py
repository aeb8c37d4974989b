"""The commands that look at a bundle: verify, locate, inspect. Heavy imports are inside."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click

from ..formats.table import FORMATS
from .options import (
    case_option,
    json_option,
    junit_option,
    key_option,
    model_option,
    quiet_option,
    verbose_option,
)
from .output import PARITY_FAILED, PASSED, complain, show


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "formats",
    multiple=True,
    type=click.Choice(list(FORMATS)),
    help="Which files to open. Repeatable.  [onnx: to open the others can run code, so they must be named]",
)
@click.option(
    "--plan",
    "level",
    type=click.Choice(["quick", "standard", "thorough"]),
    help="Compute this plan's references anew, in PyTorch, from the model in the bundle.  [the stored cases]",
)
@case_option
@model_option
@click.option("--show-plan", is_flag=True, help="Print the cases, and run nothing.")
@junit_option
@click.option(
    "--html", metavar="FILE", type=click.Path(path_type=Path), help="Write a page on the result, as the bundle has one."
)
@json_option
@verbose_option
@quiet_option
def verify(
    bundle: Path,
    formats: tuple[str, ...],
    level: str | None,
    own: tuple[Path, ...],
    factory: str | None,
    show_plan: bool,
    junit: Path | None,
    html: Path | None,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> int:
    """Check that BUNDLE is whole and still gives what PyTorch gave. Needs no PyTorch, unless --plan or --case is given.

    Every file is held against the manifest, then the stored reference cases are run in onnxruntime and in
    onnx.reference. The hashes guard against accidents, not attackers: whoever can change a file can change the
    manifest too.

    \b
    Examples:
      mytx-export verify bundle
      mytx-export verify bundle --show-plan
      mytx-export verify bundle --plan thorough --case mine.npz
      mytx-export verify bundle --junit parity.xml --html parity.html
    """
    from ..report.files import check_places, refusing, write_html, write_junit
    from ..verification import plan_of_bundle, verify_bundle
    from .terminal import Progress, print_check, print_plan

    if show_plan:
        if junit or html:
            raise click.UsageError("--show-plan runs nothing, so there is nothing to write to --junit or --html.")
        show(plan_of_bundle(bundle, level=level, own=own), print_plan, as_json, quiet)
        return PASSED
    check_places({"--junit": junit, "--html": html}, [bundle], own)  # before minutes of work
    with Progress(shown=not (quiet or verbose)) as progress, refusing(junit, "bundle"):
        result = verify_bundle(
            bundle, formats=formats, level=level, own=own, factory=factory, verbose=verbose, progress=progress
        )
    show(result, partial(print_check, verbose=verbose), as_json, quiet)
    if junit:
        write_junit(junit, result.report, result.manifest_sha256)
    if html:
        write_html(html, result.report, result.bundle, result.manifest_sha256)
    return PASSED if result.passed else PARITY_FAILED


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--graph", help="Which to look at.  [those that failed, or all]")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Folder for a minimal reproduction.  [BUNDLE-GRAPH-reproduction]",
)
@model_option
@click.option("--no-reproduction", is_flag=True, help="Write none.")
@json_option
@quiet_option
def locate(
    bundle: Path,
    graph: str | None,
    output: Path | None,
    factory: str | None,
    no_reproduction: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Find the first place where an ONNX graph in BUNDLE leaves the model: a module, or a rewrite by onnxruntime.

    Every block of the graph is run in float64 on the model's own inputs to it, so a block that introduces an error is
    told from one that passes it on. What is found is written as a minimal reproduction: the block as an ONNX file,
    inputs, expected output, and a script.

    Where no block does, or the modules are fused, as in graphs that decode, the stored cases are run in onnxruntime
    with its optimiser off and on. If they fail with it alone, the fewest rewrites without which they pass are named.
    Exit code 1 when anything is found.

    \b
    Examples:
      mytx-export locate bundle.failed --graph decoder
      mytx-export locate bundle --graph greedy
    """
    from ..locate.bundle import locate_in_bundle
    from .located import print_located
    from .terminal import Progress

    with Progress(shown=not quiet) as progress:
        result = locate_in_bundle(
            bundle, graph=graph, output=output, factory=factory, reproduce=not no_reproduction, progress=progress
        )
    show(result, print_located, as_json, quiet)
    if quiet and result.found:
        complain(f"found in {', '.join(result.graphs_found)}", "run it without --quiet, or with --json")
    return PARITY_FAILED if result.found else PASSED


@click.command()
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
    from ..bundle.inspection import inspect_path
    from .terminal import print_inspection

    found = inspect_path(path, keys)
    if as_json:
        click.echo(json.dumps(found, allow_nan=False, ensure_ascii=False))
    else:
        print_inspection(found)


COMMANDS = (verify, locate, inspect)
