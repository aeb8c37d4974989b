"""The story: a model goes in; graphs, proof and bundle come out."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ..models import Model, Vocabulary, config_of
from . import onnx_format
from .bundle import Staging, write_json
from .contract import GRAPHS
from .errors import OptionError
from .graphs import Graph, graphs_of
from .manifest import FORMAT, MANIFEST, Manifest, describe_files, describe_graph, sha256
from .memory import release_memory
from .plan import make_plan
from .reference import compute_references, measure_more
from .report import ParityReport
from .stored import BUNDLE_LIMIT, STORED, select, write_stored
from .verify import find_weights, verify_onnx
from .version import version

TOOLS = ("mytx", "torch", "onnx", "onnxscript", "onnxruntime", "numpy")
Progress = Callable[[str], None]


@dataclass(frozen=True)
class ExportResult:
    """What an export came to.

    Attributes:
        passed: whether parity holds; None where it was not checked.
        bundle: the folder, which is ``<folder>.failed`` where parity does not hold.
        report: what verification found, if it ran.
        assumed: what the checkpoint did not say.
        manifest_sha256: the manifest's digest; the manifest holds that of every other file.
        seconds: how long each stage took: ``export``, ``reference``, ``verify``.
    """

    passed: bool | None
    bundle: Path
    report: ParityReport | None
    assumed: tuple[dict[str, Any], ...]
    manifest_sha256: str
    seconds: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {
            "passed": self.passed,
            "bundle": str(self.bundle),
            "graphs": [graph.to_dict() for graph in self.report.graphs] if self.report else [],
            "assumed": list(self.assumed),
            "manifest_sha256": self.manifest_sha256,
            "seconds": self.seconds,
        }


def export_onnx(
    model: Model,
    folder: str | Path,
    *,
    components: Sequence[str] = (),
    opset: int = onnx_format.DEFAULT_OPSET,
    masks: str | None = None,
    verify: bool = True,
    force: bool = False,
    vocabulary: Vocabulary | None = None,
    verbose: bool = False,
    progress: Progress = lambda _: None,
) -> ExportResult:
    """Export ``model`` to ONNX, verify the saved files, and leave a bundle at ``folder``.

    Args:
        model: a task model or a bare ``MyTransformer``, in float32. Its mode is put back afterwards.
        folder: where the bundle goes; with failed parity, ``<folder>.failed``, and what stood at ``folder`` stays.
        components: which of ``encoder``, ``decoder`` and ``full``; empty is all that the model has.
        opset: 18 to 25.
        masks: for a bare model; see :func:`~mytx.exporter.graphs.graphs_of`.
        verify: whether to check parity.
        force: replace a bundle that is there.
        vocabulary: stored as ``vocab.json``, for whoever turns text into ids.
        verbose: let PyTorch's and onnxruntime's own messages through.
        progress: told what is being done.

    Raises:
        OptionError: for options that do not fit the model.
        ExportError: where a graph cannot be exported.
        BundleError: where the bundle cannot be written.
    """
    onnx_format.check_opset(opset)
    check_model(model)
    components = (components,) if isinstance(components, str) else components
    available = graphs_of(model, masks)
    chosen = choose(available, components)
    config = config_of(model)
    seconds: dict[str, float] = {}
    with Staging(Path(folder), force=force) as staging, _evaluating(model), quiet(verbose):
        with _timed(seconds, "export"):
            exported = _export(available, chosen, opset, progress)
            for name in chosen:
                progress(f"Writing {name}.onnx")
                onnx_format.finish(exported[name], available[name].contract, {"mytx.version": version()})
                onnx_format.save(exported.pop(name), staging.path / f"{name}.onnx")
            release_memory()
        write_json(staging.path / "config.json", config.to_dict())
        if vocabulary is not None:
            (staging.path / "vocab.json").write_text(vocabulary.to_json(), encoding="utf-8")
        graphs = {name: available[name] for name in chosen}
        report = _verify(model, graphs, staging.path, seconds, verbose, progress) if verify else None
        passed = report.passed if report else None
        assumed = tuple(asdict(item) for item in config.assumed)
        progress("Writing the manifest")
        digest = _describe(model, graphs, staging.path, report, assumed)
        bundle = staging.reject() if passed is False else staging.commit()
    return ExportResult(passed, bundle, report, assumed, digest, seconds)


def check_model(model: object) -> None:
    """Check that ``model`` is one of ours, in float32.

    Raises:
        OptionError: where it is not.
    """
    if not isinstance(model, Model):
        raise OptionError(
            f"a {type(model).__name__} is none of the models that are known", "save its state dict, load_checkpoint it"
        )
    dtypes = {str(parameter.dtype) for parameter in model.parameters()} - {"torch.float32"}
    if dtypes:
        raise OptionError(f"the model has weights in {', '.join(sorted(dtypes))}", "call model.float() first")


def choose(available: dict[str, Graph], components: Sequence[str]) -> tuple[str, ...]:
    """The graphs to export, in their usual order."""
    for name in components:
        if name not in available:
            raise OptionError(f"this model has no {name} graph", f"choose from {', '.join(available)}")
    return tuple(name for name in GRAPHS if name in (components or available))


def _export(available: dict[str, Graph], chosen: Sequence[str], opset: int, progress: Progress) -> dict[str, ir.Model]:
    # With a decoder, full is made of the two halves, so both are needed for it.
    composed = "full" in chosen and "decoder" in available
    needed = {"encoder", "decoder"} if composed else set()
    exported = {}
    for name in available:
        if name in {*chosen, *needed} and not (composed and name == "full"):
            progress(f"Exporting {name}")
            exported[name] = onnx_format.to_onnx(available[name], opset)
    if composed:
        progress("Composing full")
        exported["full"] = onnx_format.compose_full(
            exported["encoder"], exported["decoder"], available["full"].contract
        )
    return exported


def _verify(
    model: Model, graphs: dict[str, Graph], folder: Path, seconds: dict[str, float], verbose: bool, progress: Progress
) -> ParityReport:
    reports = []
    stored = {}
    for name, graph in graphs.items():  # one after the other: the references of large models are large
        path = folder / f"{name}.onnx"
        plan = make_plan(graph.contract)
        progress(f"Verifying the weights of {name}.onnx")
        with _timed(seconds, "verify"):
            found = find_weights(path, {key: tensor.numpy() for key, tensor in graph.weights().items()})
        release_memory()
        progress(f"Computing the reference of {name} in PyTorch")
        with _timed(seconds, "reference"):
            references = compute_references(model, graph, plan)
        release_memory()
        progress(f"Verifying {name}.onnx in onnxruntime")
        measure = partial(measure_more, model, graph, plan, references)
        with _timed(seconds, "verify"):
            reports += verify_onnx(
                path, graph.contract, plan, references, found=found, measure=measure, verbose=verbose
            )
        stored[name] = select(plan, references, BUNDLE_LIMIT // len(graphs))
        del references, measure
    write_stored(folder / STORED, stored)
    return ParityReport(tuple(reports))


def _describe(
    model: Model, graphs: dict[str, Graph], folder: Path, report: ParityReport | None, assumed: tuple[Any, ...]
) -> str:
    """Write ``parity.json`` and, last, the manifest; returns the manifest's digest."""
    parity = report.to_dict() if report else {"passed": None, "graphs": []}
    write_json(folder / "parity.json", parity)
    manifest = Manifest(
        format=FORMAT,
        tools={name: metadata.version(name) for name in TOOLS} | {"python": platform.python_version()},
        model={
            "kind": config_of(model).kind,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "config_sha256": sha256(folder / "config.json"),
            "weights_sha256": weights_sha256(model),
        },
        files=describe_files(folder),
        graphs={name: describe_graph(folder / f"{name}.onnx", graph.contract) for name, graph in graphs.items()},
        assumed=assumed,
        parity=parity,
    )
    write_json(folder / MANIFEST, manifest.to_dict())
    return sha256(folder / MANIFEST)


def weights_sha256(model: Model) -> str:
    """One SHA-256 over all parameters and buffers: their names, dtypes, shapes and bytes, in the order of names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().numpy())
    return digest.hexdigest()


@contextlib.contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = round(seconds.get(name, 0.0) + time.perf_counter() - start, 3)


@contextlib.contextmanager
def _evaluating(model: Model) -> Iterator[None]:
    """Evaluation mode inside; each module's own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextlib.contextmanager
def quiet(verbose: bool = False) -> Iterator[None]:
    """Keep the warnings and log lines of the libraries from the user, unless they asked for them."""
    if verbose:
        yield
        return
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
