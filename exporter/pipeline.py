"""The export from start to end: from a model to exported graphs, their verification, and a bundle."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..models import Model, Vocabulary
from .bundle.manifest import (
    FORMAT,
    MANIFEST,
    MODEL,
    Manifest,
    describe_file,
    describe_files,
    describe_graph,
    sha256,
    weights_sha256,
)
from .bundle.staging import Staging, write_json
from .bundle.versions import version, versions
from .bundle.writing import weights_of, write_files
from .cases.plan import check_level
from .cases.user_cases import read_cases
from .contracts.contract import GRAPHS
from .errors import OptionError
from .formats.onnx.export import DEFAULT_OPSET, check_opset
from .formats.onnx.shared_weights import shares
from .formats.table import FORMATS, ExportOptions
from .graphs.exportable import Exportable, as_exportable
from .graphs.graph import Graph
from .graphs.running import evaluating
from .locate.places import explained
from .memory import release_memory
from .parity.prove import Request, contract_of_file, prove
from .parity.report import ParityReport
from .parity.stored import STORED, write_stored
from .quiet import quiet
from .report.page import PAGE, parity_page
from .runtimes.run import Run
from .task.choice import write_formats
from .task.gate import task_of

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ExportResult:
    """The result of :func:`export_bundle`.

    Attributes:
        passed: whether all files agree with the model; None if they were not verified.
        bundle: folder of the bundle; ``<folder>.failed`` if verification failed.
        report: what verification found; None if it did not run.
        assumed: settings that the checkpoint does not store, with their values and sources.
        manifest_sha256: SHA-256 of the manifest, which holds the hashes of all other files.
        seconds: duration of each stage: ``export``, ``reference``, ``verify``, ``task``.
        factory: ``package.module:build`` of a user's own model; empty for other models.
    """

    passed: bool | None
    bundle: Path
    report: ParityReport | None
    assumed: tuple[dict[str, Any], ...]
    manifest_sha256: str
    seconds: dict[str, float]
    factory: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "passed": self.passed,
            "bundle": str(self.bundle),
            "graphs": self.report.to_dict(details=False)["graphs"] if self.report else [],
            "task": [one.to_dict() for one in self.report.task] if self.report else [],
            "assumed": list(self.assumed),
            "manifest_sha256": self.manifest_sha256,
            "seconds": self.seconds,
        }


def export_bundle(
    model: Model | Exportable,
    folder: str | Path,
    *,
    formats: Sequence[str] = ("onnx",),
    components: Sequence[str] = (),
    opset: int = DEFAULT_OPSET,
    masks: str | None = None,
    weights: str = "auto",
    verify: bool = True,
    level: str = "standard",
    own: Sequence[Path | str] = (),
    originals: Mapping[str, Run] | None = None,
    jobs: int = 1,
    force: bool = False,
    vocabulary: Vocabulary | None = None,
    task_data: Path | str | None = None,
    target_agreement: float | None = None,
    verbose: bool = False,
    progress: Progress = lambda _: None,
) -> ExportResult:
    """Export ``model``, verify the saved files, and write a bundle to ``folder``.

    Args:
        model: a task model or a bare ``MyTransformer``, in float32; or a :func:`~mytx.exporter.custom_model`.
            Its training mode is restored afterwards.
        folder: folder for the bundle. If verification fails, the bundle goes to ``<folder>.failed``, and an older one
            at ``folder`` stays.
        formats: any of ``onnx``, ``int8``, ``int4``, ``auto``, ``torchscript`` and ``pt2``; ``int8`` and ``int4`` are
            ONNX files with integers for weights, and ``auto`` is int8 with those layers in float32 that the task needs.
        components: names of graphs, from ``GRAPHS`` in ``contracts.contract``; empty means all that the model and the
            formats have.
        opset: opset version of ONNX files, 18 to 25.
        masks: mask inputs of a bare model; see :func:`~mytx.exporter.graphs.model_graphs.graphs_of`.
        weights: place of the weights of ONNX files: ``shared``, once in ``weights.bin``; ``inline``, in each file;
            ``auto``, shared if they have more than 16 MB.
        verify: whether to compare the files with the model.
        level: number of test cases: ``quick``, ``standard`` or ``thorough``.
        own: files with your own cases; see :func:`~mytx.exporter.cases.user_cases.read_cases`.
        originals: runs of the class that the checkpoint was trained with, by graph; see ``parity.original``.
        jobs: number of files that are exported in parallel.
        force: replace an existing bundle.
        vocabulary: stored in the bundle as ``vocab.json``, to convert text to ids.
        task_data: sentences to decode in float32 and in other precisions; see
            :func:`~mytx.exporter.task.data.read_task`. None takes random ids.
        target_agreement: the share of these that must get the same tokens in both, 0 to 1; None is 0.9 for int8, 0.8
            for int4, 0.99 for auto, and nothing for random ids.
        verbose: show the messages of PyTorch and onnxruntime.
        progress: called with the name of each stage.

    Raises:
        OptionError: if the options do not fit the model.
        ExportError: if a graph cannot be exported.
        BundleError: if the bundle cannot be written.
    """
    formats = (formats,) if isinstance(formats, str) else tuple(dict.fromkeys(formats))
    made_of = {FORMATS[name].made_of for name in formats if name in FORMATS} - {"", *formats}
    components = (components,) if isinstance(components, str) else components
    _check_options(formats, opset, level, jobs, verify)
    subject = as_exportable(model, masks)
    if subject.custom:
        _check_custom(formats, jobs)
    graphs = {name: subject.graphs[name] for name in choose(subject.graphs, components, formats)}
    if originals is not None and "full" not in graphs and not set(graphs) <= set(originals):
        held = " and ".join(name for name in graphs if name in originals) or "none"
        raise OptionError(
            f"of {', '.join(graphs)} the reference can be held against {held}",
            "add --component full, which it can be compared with",
        )
    task = None
    if verify or task_data is not None or target_agreement is not None:
        data = None if task_data is None else Path(task_data)
        task = task_of(subject.model, graphs, formats, data=data, vocabulary=vocabulary, target=target_agreement)
    request = Request(level, read_cases(own, [graph.contract for graph in graphs.values()]), verbose, originals)
    written = sorted({*formats, *made_of}, key=list(FORMATS).index)  # files, before those that are made of them
    shared = "onnx" in written and shares(weights, weights_of(graphs))
    seconds: dict[str, float] = {}
    with Staging(Path(folder), force=force) as staging, evaluating(subject.model), subject.tracing(), quiet(verbose):
        with timed(seconds, "export"):
            options = ExportOptions(opset, version(), verbose)
            write = partial(
                write_files,
                subject.model,
                subject.graphs,
                folder=staging.path,
                shared=shared,
                masks=masks,
                jobs=jobs,
                progress=progress,
            )
            kept = write_formats(write, list(graphs), written, options, staging.path, task, progress)
            for known in map(FORMATS.__getitem__, made_of):
                for file in (*map(known.file, graphs), known.weights):
                    (staging.path / file).unlink(missing_ok=True)
            release_memory()
        write_json(staging.path / "config.json", subject.config)
        if vocabulary is not None:
            (staging.path / "vocab.json").write_text(vocabulary.to_json(), encoding="utf-8")
        report = None
        if verify:
            clock, request = partial(timed, seconds), replace(request, kept=kept)
            report, stored = prove(
                subject.model, graphs, formats, staging.path, request, timed=clock, progress=progress
            )
            report = explained(report, graphs, staging.path)
            if task:
                with timed(seconds, "task"):
                    report = replace(report, task=task.check(staging.path, progress))
            write_stored(staging.path / STORED, stored)
        passed = report.passed if report else None
        if passed is False:  # `locate` needs the model to compare the files with it
            with contextlib.suppress(ValueError):  # weights that are not finite cannot be saved
                subject.save(staging.path / MODEL)
        progress("Writing the manifest")
        digest = describe(subject, graphs, formats, staging.path, report)
        bundle = staging.reject() if passed is False else staging.commit()
    return ExportResult(passed, bundle, report, subject.assumed, digest, seconds, subject.config.get("source", ""))


def _check_options(formats: Sequence[str], opset: int, level: str, jobs: int, verify: bool) -> None:
    check_opset(opset)
    for name in formats:
        if name not in FORMATS:
            raise OptionError(f"there is no format {name!r}", f"choose from {', '.join(FORMATS)}")
    if not formats:
        raise OptionError("no format is given", f"choose from {', '.join(FORMATS)}")
    if not verify and any(FORMATS[name].mixed for name in formats):
        raise OptionError(
            "without verification nothing chooses what stays float32 in auto", "leave out --no-verify (verify=False)"
        )
    check_level(level)
    if not isinstance(jobs, int) or jobs < 1:
        raise OptionError(f"{jobs!r} jobs cannot work", "give a number, 1 or more")


def _check_custom(formats: Sequence[str], jobs: int) -> None:
    if tuple(formats) != ("onnx",):
        raise OptionError(
            "a model of your own becomes ONNX in float32, and nothing else yet", "mytx-export onnx --model …"
        )
    if jobs != 1:
        raise OptionError("a model of your own is exported a graph after the other", "leave out --jobs")


def choose(available: dict[str, Graph], components: Sequence[str], formats: Sequence[str]) -> tuple[str, ...]:
    """The names of the graphs to export, in their usual order: ``components``, or all that ``formats`` can hold.

    Raises:
        OptionError: if a component is not a graph of the model, or no format can hold it.
    """
    possible = [
        name for name, graph in available.items() if any(FORMATS[known].holds(graph.contract) for known in formats)
    ]
    for name in components:
        if name not in available:
            raise OptionError(f"this model has no {name} graph", f"choose from {', '.join(possible)}")
        if name not in possible:
            raise OptionError(
                f"{' and '.join(formats)} cannot hold the {name} graph", f"choose from {', '.join(possible)}"
            )
    usual = [*GRAPHS, *(name for name in available if name not in GRAPHS)]
    return tuple(name for name in usual if name in (components or possible))


def describe(
    subject: Exportable, graphs: dict[str, Graph], formats: Sequence[str], folder: Path, report: ParityReport | None
) -> str:
    """Write ``parity.json``, ``parity.html`` and last the manifest, and return the manifest's SHA-256."""
    nothing: dict[str, Any] = {"passed": None, "graphs": []}
    if report:
        (folder / "parity.json").write_text(report.to_json(), encoding="utf-8")
    else:
        write_json(folder / "parity.json", nothing)
    manifest = Manifest(
        format=FORMAT,
        tools=versions(),
        model={
            "kind": subject.config["kind"],
            "parameters": sum(parameter.numel() for parameter in subject.model.parameters()),
            "config_sha256": sha256(folder / "config.json"),
            "weights_sha256": weights_sha256(
                {name: tensor.numpy() for name, tensor in subject.model.state_dict().items()}
            ),
        },
        files=describe_files(folder),
        graphs={
            known.file(name): describe_graph(folder / known.file(name), known.name, contract_of_file(known, graph))
            for known in map(FORMATS.__getitem__, formats)
            for name, graph in graphs.items()
            if known.holds(graph.contract)
        },
        assumed=subject.assumed,
        parity=report.to_dict(details=False) if report else nothing,
    )
    (folder / PAGE).write_bytes(parity_page(report, manifest))
    page = describe_file(folder, folder / PAGE)
    manifest = replace(manifest, files=tuple(sorted((*manifest.files, page), key=lambda entry: entry.path)))
    write_json(folder / MANIFEST, manifest.to_dict())
    return sha256(folder / MANIFEST)


@contextlib.contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = round(seconds.get(name, 0.0) + time.perf_counter() - start, 3)
