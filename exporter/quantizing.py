"""``mytx-export quantize``: add files of another precision to a bundle, proven as an export proves them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from .bundle.manifest import MANIFEST
from .bundle.open import Bundle, open_bundle
from .bundle.rebuild import rebuild
from .bundle.staging import Staging
from .bundle.versions import version
from .bundle.writing import write_files
from .cases.plan import check_level
from .cases.user_cases import read_cases
from .contracts.contract import CUSTOM_KIND
from .errors import BundleError, OptionError
from .formats.onnx.shared_weights import WEIGHTS
from .formats.table import FORMATS, PRECISIONS, ExportOptions
from .graphs.running import evaluating
from .parity.prove import Request, prove
from .parity.report import ParityReport
from .parity.stored import STORED, read_stored, write_stored
from .pipeline import ExportResult, Progress, describe, timed
from .quiet import quiet
from .task.choice import write_formats
from .task.gate import task_of


def quantize_bundle(
    path: str | Path,
    precisions: Sequence[str] = ("int8",),
    *,
    level: str = "standard",
    own: Sequence[Path | str] = (),
    task_data: Path | str | None = None,
    target_agreement: float | None = None,
    verbose: bool = False,
    progress: Progress = lambda _: None,
) -> ExportResult:
    """Add ONNX files of other precisions to the bundle at ``path``, made of its float32 files, and verify them.

    The bundle is replaced as a whole when all is done. If verification fails it stays as it is, and the bundle with the
    new files goes to ``<path>.failed``.

    Args:
        path: the folder of a bundle with ONNX files in ``fp32``. If it was not verified, all its files are, too.
        precisions: of the new files: ``int8``, ``int4``, ``auto``.
        level: number of test cases: ``quick``, ``standard`` or ``thorough``.
        own: files with your own cases; see :func:`~mytx.exporter.cases.user_cases.read_cases`.
        task_data, target_agreement: as for :func:`~mytx.exporter.pipeline.export_bundle`.
        verbose: show the messages of PyTorch and onnxruntime.
        progress: called with the name of each stage.

    Raises:
        BundleError: if it is not a bundle, is damaged or failed, or cannot be written.
        OptionError: if it has such files already, or cannot have them, or if a case does not fit.
        ExportError: if a weight is not finite.
    """
    precisions = (precisions,) if isinstance(precisions, str) else tuple(dict.fromkeys(precisions))
    check_level(level)
    bundle = open_bundle(path)
    formats = _new_formats(bundle, precisions)
    progress("Rebuilding the model")
    with quiet(verbose):
        subject = rebuild(bundle)
    graphs = {name: subject.graphs[name] for name in bundle.manifest.of_format("onnx")}
    task = task_of(
        subject.model,
        graphs,
        formats,
        data=None if task_data is None else Path(task_data),
        vocabulary=bundle.vocabulary if (bundle.folder / "vocab.json").is_file() else None,
        target=target_agreement,
    )
    request = Request(level, read_cases(own, [graph.contract for graph in graphs.values()]), verbose)
    present = [name for name in FORMATS if bundle.manifest.of_format(name)]
    verified = bundle.manifest.parity["passed"] is not None
    seconds: dict[str, float] = {}
    with Staging(bundle.folder, force=True) as staging, evaluating(subject.model), quiet(verbose):
        with timed(seconds, "export"):
            _copy_files(bundle, staging.path)
            options = ExportOptions(producer=version(), verbose=verbose)
            shared = (staging.path / WEIGHTS).exists()
            write = partial(
                write_files, subject.model, subject.graphs, folder=staging.path, shared=shared, progress=progress
            )
            kept = write_formats(write, list(graphs), formats, options, staging.path, task, progress)
        proven = formats if verified else [*present, *formats]
        clock = partial(timed, seconds)
        request = replace(request, kept=kept)
        found, stored = prove(subject.model, graphs, proven, staging.path, request, timed=clock, progress=progress)
        report = _together(bundle, found) if verified else found
        if task:
            with timed(seconds, "task"):
                new = task.check(staging.path, progress)
                old = [one for one in report.task if one.file not in {other.file for other in new}]
                report = replace(report, task=(*old, *new))
        if verified:
            stored |= read_stored(bundle.folder / STORED)
        write_stored(staging.path / STORED, stored)
        progress("Writing the manifest")
        digest = describe(subject, graphs, [*present, *formats], staging.path, report)
        place = staging.commit() if report.passed else staging.reject()
    return ExportResult(report.passed, place, report, subject.assumed, digest, seconds)


def _new_formats(bundle: Bundle, precisions: Sequence[str]) -> list[str]:
    """The formats of ``precisions``, after a check that the bundle can get files of each."""
    others = [name for name, known in PRECISIONS.items() if FORMATS[known].made_of]
    for name in precisions:
        if name not in others:
            raise OptionError(f"files in {name!r} cannot be made of others", f"choose from {', '.join(others)}")
        if bundle.manifest.of_format(PRECISIONS[name]):
            raise OptionError(
                f"{bundle.folder} has files in {name} already", "export the bundle again to make them anew"
            )
    if not precisions:
        raise OptionError("no precision is given", f"choose from {', '.join(others)}")
    if bundle.manifest.kind == CUSTOM_KIND:
        raise OptionError(
            f"{bundle.folder} holds a model of your own, which mytx can export in fp32 only", "use its float32 files"
        )
    return [PRECISIONS[name] for name in precisions]


def _copy_files(bundle: Bundle, folder: Path) -> None:
    for entry in bundle.manifest.files:
        (folder / entry.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(bundle.folder / entry.path, folder / entry.path)


def _together(bundle: Bundle, new: ParityReport) -> ParityReport:
    """What verification found before, and now. The model's own checks are made again, and count once.

    Raises:
        BundleError: if the report in the bundle is damaged.
    """
    path = bundle.folder / "parity.json"
    try:
        before = ParityReport.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BundleError(f"{path} is damaged, or does not fit {MANIFEST}", "export the bundle again") from error
    again = {(row.graph, row.format) for row in new.graphs}
    kept = [row for row in before.graphs if (row.graph, row.format) not in again]
    return ParityReport((*kept, *new.graphs), before.task)
