"""The commands that export: one for each format, and one for all. Heavy imports are inside."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .contract import GRAPHS
from .formats import FORMATS
from .options import (
    case_option,
    checkpoint_options,
    json_option,
    junit_option,
    plan_option,
    quiet_option,
    together,
    verbose_option,
)
from .output import PARITY_FAILED, PASSED, causes, show

if TYPE_CHECKING:
    from .pipeline import ExportResult

TORCHSCRIPT_IS_DEPRECATED = (
    "note: PyTorch has deprecated TorchScript; `mytx-export pt2` makes torch.export programs of the same graphs"
)

export_options = together(
    click.argument("checkpoint", required=False, type=click.Path(path_type=Path)),
    click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder for the bundle."),
    checkpoint_options,
    click.option(
        "--component",
        "components",
        multiple=True,
        type=click.Choice(list(GRAPHS)),
        help="Graph to export. Repeatable.  [all that the model and the format have]",
    ),
    click.option(
        "--masks",
        help="Mask inputs of a bare MyTransformer: a comma list of its mask arguments, each optionally :bool, :float "
        "or :3d.  [tgt_mask and the three key padding masks]",
    ),
    plan_option,
    case_option,
    click.option("--no-verify", is_flag=True, help="Do not check parity; the result says passed: null."),
    click.option(
        "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Files to export at the same time."
    ),
    click.option("--force", is_flag=True, help="Replace a bundle that is there."),
    junit_option,
    json_option,
    verbose_option,
    quiet_option,
)
onnx_options = together(
    click.option("--opset", type=int, default=18, show_default=True, help="ONNX opset, 18 to 25."),
    click.option(
        "--weights",
        type=click.Choice(["auto", "inline", "shared"]),
        default="auto",
        show_default=True,
        help="In each ONNX file, or once in weights.bin beside them; auto shares more than 16 MB.",
    ),
)


@click.command()
@export_options
@onnx_options
def onnx(**options: Any) -> int:
    """Export CHECKPOINT to ONNX and verify the files in onnxruntime.

    CHECKPOINT is a .pt, .pkl or .safetensors file with a state dict, or a folder that save_model wrote; without one,
    the demo model that comes with mytx is exported. OUTPUT gets encoder.onnx, decoder.onnx and full.onnx; for a model
    on ids also a whole decode in one file, greedy.onnx and generate.onnx, and a cached step, prefill.onnx and
    step.onnx. They are moved there only when they are complete and equal to PyTorch; a bundle that is not goes to
    OUTPUT.failed.

    \b
    Examples:
      mytx-export onnx -o demo-bundle
      mytx-export onnx model.pt --nhead 8 -o bundle
    """
    return _run(["onnx"], **options)


@click.command()
@export_options
def torchscript(**options: Any) -> int:
    """Export CHECKPOINT to TorchScript, for libtorch, and verify the files.

    OUTPUT gets encoder.ts.pt, decoder.ts.pt and full.ts.pt, and generate.ts.pt with the whole decode: scripted, not
    traced, and frozen; every mask may be left out. CHECKPOINT and OUTPUT are as for `mytx-export onnx`. PyTorch has
    deprecated TorchScript: see `mytx-export pt2`. To open such a file can run code, so open only files that you trust.

    \b
    Example:
      mytx-export torchscript model.pt --nhead 8 -o bundle
    """
    return _run(["torchscript"], **options)


@click.command()
@export_options
def pt2(**options: Any) -> int:
    """Export CHECKPOINT to torch.export programs and verify the files.

    OUTPUT gets encoder.pt2, decoder.pt2 and full.pt2, with free batch and lengths. CHECKPOINT and OUTPUT are as for
    `mytx-export onnx`. To open such a file can run code, so open only files that you trust.

    \b
    Example:
      mytx-export pt2 model.pt --nhead 8 -o bundle
    """
    return _run(["pt2"], **options)


@click.command("all")
@export_options
@onnx_options
def all_formats(**options: Any) -> int:
    """Export CHECKPOINT to every format, into one bundle, and verify all files against one reference.

    CHECKPOINT and OUTPUT are as for `mytx-export onnx`.

    \b
    Example:
      mytx-export all model.pt --nhead 8 -o bundle --jobs 2
    """
    return _run(list(FORMATS), **options)


COMMANDS = (onnx, torchscript, pt2, all_formats)


def _run(formats: list[str], *, as_json: bool, verbose: bool, quiet: bool, junit: Path | None, **options: Any) -> int:
    if verbose and quiet:
        raise click.UsageError("--verbose and --quiet exclude each other.")
    if junit and options["no_verify"]:
        raise click.UsageError("--no-verify proves nothing, so there is nothing to write to --junit.")
    from .report_files import check_places, write_export
    from .terminal import Progress, print_result

    bundles = [options["output"], Path(f"{os.path.realpath(options['output'])}.failed")]
    check_places({"--junit": junit}, bundles, [options["checkpoint"], options["vocab"], *options["own"]])
    if "torchscript" in formats and not quiet:
        click.echo(TORCHSCRIPT_IS_DEPRECATED, err=True)
    with Progress(shown=not (quiet or verbose)) as progress, causes(shown=verbose):
        progress("Starting PyTorch")
        result = _export(formats, verbose=verbose, progress=progress, **options)
    show(result, print_result, as_json, quiet)
    write_export(result, junit=junit)
    return PARITY_FAILED if result.passed is False else PASSED


def _export(
    formats: list[str],
    *,
    checkpoint: Path | None,
    output: Path,
    components: tuple[str, ...],
    masks: str | None,
    level: str,
    own: tuple[Path, ...],
    no_verify: bool,
    jobs: int,
    force: bool,
    verbose: bool,
    progress: Callable[[str], None],
    opset: int = 18,
    weights: str = "auto",
    **reading: Any,
) -> ExportResult:
    from ..models.errors import MytxError
    from .bundle import Staging

    if checkpoint is None:
        from ..models.demo_files import demo_folder

        checkpoint = demo_folder()
    with Staging(output, force=force):
        pass  # an output that cannot be is refused before minutes of work
    if not checkpoint.exists():  # and a mistyped name before PyTorch is loaded
        raise MytxError(f"{checkpoint}: no such file", "check the path to the checkpoint")
    from ..models import Vocabulary, find_vocab, load_checkpoint
    from .onnx_format import check_opset
    from .pipeline import export_bundle

    check_opset(opset)
    progress(f"Loading {checkpoint.name}")
    model = load_checkpoint(checkpoint, **reading)
    file = reading["vocab"] or find_vocab(checkpoint)
    return export_bundle(
        model,
        output,
        formats=formats,
        components=components,
        opset=opset,
        masks=masks,
        weights=weights,
        verify=not no_verify,
        level=level,
        own=own,
        jobs=jobs,
        force=force,
        vocabulary=Vocabulary.read(file) if file else None,
        verbose=verbose,
        progress=progress,
    )
