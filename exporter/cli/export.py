"""The commands that export: one for each format, and one for all. Heavy imports are inside the functions."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..contracts.contract import GRAPHS
from ..formats.table import FORMATS, PRECISIONS
from .custom import check_custom, make_custom
from .options import (
    case_option,
    checkpoint_options,
    custom_options,
    json_option,
    junit_option,
    plan_option,
    quiet_option,
    task_options,
    together,
    verbose_option,
)
from .output import PARITY_FAILED, PASSED, causes, show

if TYPE_CHECKING:
    from ..pipeline import ExportResult

TORCHSCRIPT_IS_DEPRECATED = (
    "note: PyTorch has deprecated TorchScript; `mytx-export pt2` makes torch.export programs of the same graphs"
)

export_options = together(
    click.argument("checkpoint", required=False, type=click.Path(path_type=Path)),
    click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder of the new bundle."),
    checkpoint_options,
    custom_options,
    click.option(
        "--component",
        "components",
        multiple=True,
        metavar=f"[{'|'.join(GRAPHS)}]",
        help="Graph to export. Repeatable.  [all graphs that the model and the format have]",
    ),
    click.option(
        "--masks",
        help="Mask inputs of a bare MyTransformer: its mask arguments, separated by commas, each with an optional "
        "suffix :bool, :float or :3d.  [tgt_mask and the three key padding masks]",
    ),
    plan_option,
    case_option,
    click.option("--no-verify", is_flag=True, help="Do not compare the files with PyTorch; JSON: passed is null."),
    click.option(
        "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Number of files to export in parallel."
    ),
    click.option("--force", is_flag=True, help="Replace an existing bundle."),
    junit_option,
    json_option,
    verbose_option,
    quiet_option,
)
onnx_options = together(
    click.option(
        "--precision",
        "precisions",
        multiple=True,
        type=click.Choice(list(PRECISIONS)),
        help="Precision of the ONNX files; int8: 8-bit integers in all products, a quarter of the size; int4: 4-bit "
        "weights, a sixth, for onnxruntime only; auto: int8 with those layers in float32 that your task needs. "
        "Repeatable.  [fp32]",
    ),
    click.option("--opset", type=int, default=18, show_default=True, help="ONNX opset version, 18 to 25."),
    click.option(
        "--weights",
        type=click.Choice(["auto", "inline", "shared"]),
        default="auto",
        show_default=True,
        help="inline: weights in each ONNX file. shared: once, in weights.bin. auto: shared above 16 MB.",
    ),
    task_options,
)


@click.command()
@export_options
@onnx_options
def onnx(**options: Any) -> int:
    """Export CHECKPOINT to ONNX and verify the files in onnxruntime.

    CHECKPOINT is a .pt, .pkl or .safetensors file with a state dict, or a folder that save_model wrote. Without
    CHECKPOINT, the demo model of mytx is exported. OUTPUT gets encoder.onnx, decoder.onnx and full.onnx. A model that
    takes token ids also gets greedy.onnx and generate.onnx, which decode whole sentences, and prefill.onnx and
    step.onnx, which decode step by step with a KV cache. The bundle is at OUTPUT if its files agree with PyTorch, and
    at OUTPUT.failed if they do not.

    To export your own model, give --model, and --contract unless the model has methods encode and decode with the usual
    arguments. Its code is imported and run.

    \b
    Examples:
      mytx-export onnx -o demo-bundle
      mytx-export onnx model.pt --nhead 8 -o bundle
      mytx-export onnx model.pt --nhead 8 --reference training.model:build -o bundle
      mytx-export onnx model.pt --model training.model:build --contract contract.py -o bundle
    """
    return _run([], **options)


@click.command()
@export_options
def torchscript(**options: Any) -> int:
    """Export CHECKPOINT to TorchScript, for libtorch, and verify the files.

    OUTPUT gets encoder.ts.pt, decoder.ts.pt, full.ts.pt, and generate.ts.pt, which decodes whole sentences: scripted,
    not traced, and frozen, with optional masks. CHECKPOINT and OUTPUT are as for `mytx-export onnx`. PyTorch has
    deprecated TorchScript: see `mytx-export pt2`. Open only files that you trust: opening one can run code.

    \b
    Example:
      mytx-export torchscript model.pt --nhead 8 -o bundle
    """
    return _run(["torchscript"], **options)


@click.command()
@export_options
def pt2(**options: Any) -> int:
    """Export CHECKPOINT to torch.export programs and verify the files.

    OUTPUT gets encoder.pt2, decoder.pt2 and full.pt2, for any batch size and length. CHECKPOINT and OUTPUT are as for
    `mytx-export onnx`. Open only files that you trust: opening one can run code.

    \b
    Example:
      mytx-export pt2 model.pt --nhead 8 -o bundle
    """
    return _run(["pt2"], **options)


@click.command("all")
@export_options
@onnx_options
def all_formats(**options: Any) -> int:
    """Export CHECKPOINT to every format, into one bundle, and verify all files with the same reference.

    CHECKPOINT and OUTPUT are as for `mytx-export onnx`.

    \b
    Example:
      mytx-export all model.pt --nhead 8 -o bundle --jobs 2
    """
    return _run([name for name, known in FORMATS.items() if not known.precision], **options)


COMMANDS = (onnx, torchscript, pt2, all_formats)


def _run(
    formats: list[str],
    *,
    as_json: bool,
    verbose: bool,
    quiet: bool,
    junit: Path | None,
    precisions: tuple[str, ...] | None = None,
    **options: Any,
) -> int:
    """Export to ``formats``, and to ONNX in ``precisions``, float32 if they are empty; None is not to ONNX."""
    if precisions is not None:
        formats = [*(PRECISIONS[name] for name in precisions or ("fp32",)), *formats]
    if verbose and quiet:
        raise click.UsageError("--verbose and --quiet exclude each other.")
    if junit and options["no_verify"]:
        raise click.UsageError("--no-verify proves nothing, so there is nothing to write to --junit.")
    from ..report.files import check_places, refusing, write_junit
    from .terminal import Progress, print_result

    bundles = [options["output"], Path(f"{os.path.realpath(options['output'])}.failed")]
    read = [options[name] for name in ("checkpoint", "also", "contract", "vocab")]
    check_places({"--junit": junit}, bundles, [*read, *options["own"]])
    if "torchscript" in formats and not quiet:
        click.echo(TORCHSCRIPT_IS_DEPRECATED, err=True)
    with Progress(shown=not (quiet or verbose)) as progress, refusing(junit, "export"), causes(shown=verbose):
        progress("Starting PyTorch")
        result = _export(formats, verbose=verbose, progress=progress, **options)
    show(result, partial(print_result, verbose=verbose), as_json, quiet)
    if junit and result.report:
        write_junit(junit, result.report, result.manifest_sha256)
    return PARITY_FAILED if result.passed is False else PASSED


def _export(
    formats: list[str],
    *,
    checkpoint: Path | None,
    also: Path | None,
    output: Path,
    factory: str | None,
    contract: Path | None,
    reference: str | None,
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
    task_data: Path | None = None,
    target_agreement: float | None = None,
    **reading: Any,
) -> ExportResult:
    from ...models.errors import MytxError
    from ..bundle.staging import Staging

    if checkpoint and also:
        raise click.UsageError("CHECKPOINT and --checkpoint mean the same: give one.")
    checkpoint = checkpoint or also
    check_custom(factory, contract, reference, checkpoint, no_verify, reading)
    if no_verify and (task_data is not None or target_agreement is not None):
        raise click.UsageError("--no-verify compares nothing: leave out --task-data and --target-agreement.")
    if factory is None and (unknown := [name for name in components if name not in GRAPHS]):
        raise click.BadParameter(
            f"{unknown[0]!r} is not one of {', '.join(map(repr, GRAPHS))}.", param_hint="'--component'"
        )
    if checkpoint is None and factory is None:
        from ...models.demo_files import HELD_OUT, demo_folder

        checkpoint = demo_folder()
        if task_data is None and not no_verify and any(FORMATS[name].made_of for name in formats):
            task_data = checkpoint / HELD_OUT
    with Staging(output, force=force):
        pass  # refuses an impossible OUTPUT now, not after minutes of work
    if checkpoint is not None and not checkpoint.exists():  # refuses a mistyped name before PyTorch is loaded
        raise MytxError(f"{checkpoint}: no such file", "check the path to the checkpoint")
    from ..formats.onnx.export import check_opset
    from ..pipeline import export_bundle

    check_opset(opset)
    settings: dict[str, Any] = {}
    if factory is not None:
        model: Any = make_custom(factory, checkpoint, contract, verbose, progress)
    else:
        from ...models import Vocabulary, find_vocab, load_checkpoint
        from ..quiet import quiet

        assert checkpoint is not None
        progress(f"Loading {checkpoint.name}")
        model = load_checkpoint(checkpoint, **reading)
        file = reading["vocab"] or find_vocab(checkpoint)
        settings["vocabulary"] = Vocabulary.read(file) if file else None
        if reference is not None:
            from ..graphs.exportable import as_exportable
            from ..graphs.user_code import load_weights, make_module
            from ..parity.original import originals

            progress(f"Loading {reference}")
            with quiet(verbose):
                module = make_module(reference)
                load_weights(module, checkpoint, reference)
                settings["originals"] = originals(module, as_exportable(model, masks).graphs, reference)
    return export_bundle(
        model,
        output,
        formats=formats,
        components=components,
        opset=opset,
        masks=masks,
        weights=weights,
        task_data=task_data,
        target_agreement=target_agreement,
        verify=not no_verify,
        level=level,
        own=own,
        jobs=jobs,
        force=force,
        verbose=verbose,
        progress=progress,
        **settings,
    )
