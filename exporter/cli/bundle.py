"""The commands ``verify``, ``quantize``, ``locate`` and ``inspect``. Heavy imports are inside the functions."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import click

from ..formats.table import FORMATS, PRECISIONS
from .options import (
    case_option,
    json_option,
    junit_option,
    key_option,
    model_option,
    plan_option,
    quiet_option,
    task_options,
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
    help="Format of the files to verify. Repeatable.  [onnx. Files of other formats can run code when they are opened: "
    "name these formats only if you trust the files]",
)
@click.option(
    "--plan",
    "level",
    type=click.Choice(["quick", "standard", "thorough"]),
    help="Rebuild the model from the bundle in PyTorch and compare with it: quick takes the fewest cases, thorough the "
    "most.  [compare with the results that the bundle stores, without PyTorch]",
)
@case_option
@model_option
@click.option("--show-plan", is_flag=True, help="Print the test cases and run nothing.")
@junit_option
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the result as an HTML page, like the bundle's parity.html.",
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
    """Check that BUNDLE is complete, run its files, and compare the results with PyTorch's.

    Every file is checked against its hash in the manifest. Then the files run the cases that the bundle stores, in
    onnxruntime and in onnx.reference, and the results are compared with PyTorch's stored results. PyTorch is needed
    only for --plan, --case, --model, and for --format torchscript or pt2. The hashes protect against accidents, not
    against attackers: who can change a file can also change the manifest.

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
    check_places({"--junit": junit, "--html": html}, [bundle], own)  # now, not after minutes of work
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
@click.option("--graph", help="Graph to search, such as decoder.  [those that failed, or all]")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Folder for the reproduction: an ONNX file, its inputs and a script.  [BUNDLE-GRAPH-reproduction]",
)
@model_option
@click.option("--no-reproduction", is_flag=True, help="Do not write a reproduction.")
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
    """Find the module, or the rewrite by onnxruntime, at which an ONNX graph in BUNDLE first differs from the model.

    Every block of the graph runs in float64 on the inputs that the model gives to it. This separates a block that
    introduces an error from a block that passes it on. The first such block is written as a minimal reproduction: the
    block as an ONNX file, its inputs, the expected output, and a script.

    If no block differs, or if the modules are fused, as in the graphs that decode, the stored cases run in onnxruntime
    with its optimiser off and on. If they fail only with the optimiser, locate names the smallest set of rewrites to
    disable. The exit code is 1 if anything is found.

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
    """Describe PATH: a checkpoint, a folder that save_model wrote, or a bundle.

    For a checkpoint: its layout and sizes, the settings that it does not store, and the command to run next. For a
    bundle: its graphs with their inputs and outputs, the versions of the tools, and whether parity passed.

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


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    default=("int8",),
    show_default=True,
    type=click.Choice([name for name, known in PRECISIONS.items() if FORMATS[known].made_of]),
    help="Precision of the new files. Repeatable.",
)
@plan_option
@case_option
@task_options
@junit_option
@json_option
@verbose_option
@quiet_option
def quantize(
    bundle: Path,
    precisions: tuple[str, ...],
    level: str,
    own: tuple[Path, ...],
    task_data: Path | None,
    target_agreement: float | None,
    junit: Path | None,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> int:
    """Add ONNX files with 8-bit or 4-bit integers to BUNDLE, made of its files in fp32, and verify them.

    In auto some layers stay float32: as few as can be, so that on --task-data the share --target-agreement of the
    sentences gets the same tokens as in float32.

    The model is rebuilt from the bundle in PyTorch. BUNDLE is replaced as a whole when all is done; if the new files do
    not agree with PyTorch it stays as it is, and BUNDLE.failed has them.

    \b
    Example:
      mytx-export quantize bundle --precision int8
    """
    from ..quantizing import quantize_bundle
    from ..report.files import check_places, refusing, write_junit
    from .terminal import Progress, print_result

    check_places({"--junit": junit}, [bundle, Path(f"{os.path.realpath(bundle)}.failed")], own)
    with Progress(shown=not (quiet or verbose)) as progress, refusing(junit, "export"):
        result = quantize_bundle(
            bundle,
            precisions,
            level=level,
            own=own,
            task_data=task_data,
            target_agreement=target_agreement,
            verbose=verbose,
            progress=progress,
        )
    show(result, partial(print_result, verbose=verbose), as_json, quiet)
    if junit and result.report:
        write_junit(junit, result.report, result.manifest_sha256)
    return PASSED if result.passed else PARITY_FAILED


COMMANDS = (verify, quantize, locate, inspect)
