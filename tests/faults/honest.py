"""Honest models: architectures, and weights to put into them and into their files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Generator, Tensor, nn

from exported_models import KINDS, kept_of, lively, plain, shaken, translation
from mytx.exporter.formats.onnx import export as onnx_format
from mytx.exporter.formats.onnx import files as onnx_files
from mytx.exporter.formats.table import FORMATS, ExportOptions
from mytx.exporter.graphs.graph import Graph
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.parity.prove import Request, prove
from mytx.exporter.parity.report import ParityReport
from mytx.exporter.quiet import quiet
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime
from mytx.models import Model, load_model
from mytx.models.demo_files import demo_folder
from mytx.transformer import MyTransformer
from planting import all_graphs
from rules import allclose_flags, torch_verify_flags
from subject import collect_less

BOOL_MASKS = (
    "src_mask:bool,tgt_mask:bool,memory_mask:bool,src_key_padding_mask,tgt_key_padding_mask,memory_key_padding_mask"
)
DEMO = "demo, trained"
# The graphs that decode take most of the time: they are examined in some architectures, with some sets of weights.
DECODING = ("lively", "couplet", "norm first, gelu, no bias", DEMO)
DECODED_WEIGHTS = ("normal, 0.1", "normal, 0.3", "Xavier", "low rank", "heavy tails", "as trained", "tuned")


@dataclass(frozen=True)
class Architecture:
    """How a model is built and exported."""

    build: Callable[[], Model]
    masks: str | None = None
    opset: int = onnx_format.DEFAULT_OPSET


ARCHITECTURES: dict[str, Architecture] = {
    **{kind: Architecture(*rest) for kind, rest in KINDS.items()},
    "translation, opset 23": Architecture(translation, opset=23),
    "gelu, post-norm": Architecture(partial(translation, activation="gelu", num_encoder_layers=2)),
    "three layers each": Architecture(partial(translation, num_encoder_layers=3, num_decoder_layers=3)),
    "wide heads": Architecture(partial(translation, d_model=64, nhead=2, dim_feedforward=128, num_decoder_layers=1)),
    "bare, bool masks": Architecture(lambda: MyTransformer(16, 2, 1, 2, 24), BOOL_MASKS),
    "lively": Architecture(lively),
    DEMO: Architecture(lambda: load_model(demo_folder())),
}


# --- weights ---------------------------------------------------------------------------------------------------------

Draw = Callable[[str, Tensor, Generator], Tensor]


def normal(spread: float) -> Draw:
    """Everything normal, the norms' weights too: from almost flat to attention that picks single keys."""
    return lambda name, old, generator: spread * torch.randn(old.shape, generator=generator)


def _as_trained(matrix: Callable[[Tensor, Generator], Tensor]) -> Draw:
    """Norms' weights near 1, biases near 0, matrices by ``matrix``."""

    def draw(name: str, old: Tensor, generator: Generator) -> Tensor:
        if old.dim() > 1:
            return matrix(old, generator)
        return float("norm" in name and name.endswith("weight")) + 0.2 * torch.randn(old.shape, generator=generator)

    return draw


def _xavier(old: Tensor, generator: Generator) -> Tensor:
    return torch.randn(old.shape, generator=generator) * (2 / sum(old.shape)) ** 0.5


def _low_rank(old: Tensor, generator: Generator) -> Tensor:
    left = torch.randn(old.shape[0], 3, generator=generator)
    right = torch.randn(3, old.shape[1], generator=generator)
    return 0.2 * left @ right + 0.02 * torch.randn(old.shape, generator=generator)


def _heavy_tailed(old: Tensor, generator: Generator) -> Tensor:
    """Student's t with 3 degrees of freedom."""
    normals = torch.randn(3, *old.shape, generator=generator)
    return 0.1 * torch.randn(old.shape, generator=generator) / (normals.square().mean(0).sqrt() + 1e-3)


def _sparse(old: Tensor, generator: Generator) -> Tensor:
    return _xavier(old, generator) * 2 * (torch.rand(old.shape, generator=generator) < 0.2)


def _on_a_grid(old: Tensor, generator: Generator) -> Tensor:
    """As weights that were quantised while they were trained."""
    return (16 * _xavier(old, generator)).round() / 16


def _as_it_is(name: str, old: Tensor, generator: Generator) -> Tensor:
    return old


def _tuned(name: str, old: Tensor, generator: Generator) -> Tensor:
    return old * (1 + 0.05 * torch.randn(old.shape, generator=generator))


def _pruned(name: str, old: Tensor, generator: Generator) -> Tensor:
    return old * (old.abs() > old.abs().median()) if old.dim() > 1 else old


def _in_bfloat16(name: str, old: Tensor, generator: Generator) -> Tensor:
    return old.bfloat16().float()


WEIGHTS: dict[str, Draw] = {
    **{f"normal, {spread:g}": normal(spread) for spread in (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7)},
    "Xavier": _as_trained(_xavier),
    "Xavier, other seed": _as_trained(_xavier),
    "low rank": _as_trained(_low_rank),
    "low rank, other seed": _as_trained(_low_rank),
    "heavy tails": _as_trained(_heavy_tailed),
    "heavy tails, other seed": _as_trained(_heavy_tailed),
    "sparse": _as_trained(_sparse),
    "sparse, other seed": _as_trained(_sparse),
    "on a grid": _as_trained(_on_a_grid),
}
QUANTISED = [name for name, known in FORMATS.items() if known.made_of]
# Sets whose files are made in these, too.
QUANTISED_WEIGHTS = ("normal, 0.1", "heavy tails", "sparse", "as trained", "in bfloat16")
TRAINED: dict[str, Draw] = {"as trained": _as_it_is, "tuned": _tuned, "pruned": _pruned, "in bfloat16": _in_bfloat16}


def weights_of(architecture: str) -> dict[str, Draw]:
    return TRAINED if architecture == DEMO else WEIGHTS


def put(model: nn.Module, draw: Draw, seed: int, originals: dict[str, Tensor]) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(draw(name, originals[name], generator))


# --- the exam --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Honest:
    """What came of one honest model with all its graphs.

    Attributes:
        architecture, weights: which.
        verdict: ``passed``, ``not judged`` (PyTorch's own float32 is too far off), or ``false alarm``.
        compared: output elements.
        worst_ratio, worst_structure: the largest factors, of 4 and of 0.1.
        quantised: whether its files in other precisions were verified, too.
        torch_verify, allclose: whether the other rules raise a false alarm.
        findings: what was said.
    """

    architecture: str
    weights: str
    verdict: str
    compared: int
    worst_ratio: float
    worst_structure: float
    torch_verify: bool
    allclose: bool
    quantised: bool = False
    findings: tuple[str, ...] = ()


def examine_honest(
    name: str, chosen: list[str] | None = None, exported: Callable[[str], Path] | None = None
) -> Iterator[Honest]:
    """One architecture, exported once, with each of its sets of weights (or the ``chosen`` ones).

    ``exported`` gives the file of a graph where that was exported before.
    """
    architecture = ARCHITECTURES[name]
    torch.manual_seed(20)
    model = architecture.build().eval() if name == DEMO else shaken(architecture.build())
    every = graphs_of(model, architecture.masks)
    kept = kept_of(model)
    originals = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    sets = {key: draw for key, draw in weights_of(name).items() if chosen is None or key in chosen}
    decoded = set(DECODED_WEIGHTS) & set(sets) if name in DECODING else set()
    with tempfile.TemporaryDirectory() as made, tempfile.TemporaryDirectory() as patched, quiet():
        for graph in () if exported else every if decoded else plain(every):
            onnx_files.export(every, graph, Path(made), ExportOptions(opset=architecture.opset))
        collect_less()
        for seed, (weights, draw) in enumerate(sets.items()):
            put(model, draw, seed, originals)
            graphs = every if weights in decoded else plain(every)
            for graph in graphs.values():
                honest = exported(graph.name) if exported else Path(made) / f"{graph.name}.onnx"
                _patch(graph, honest, Path(patched))
            others = QUANTISED if weights in QUANTISED_WEIGHTS else []
            for known in others:
                for graph in graphs:
                    FORMATS[known].load_exporter().export(graphs, graph, Path(patched), ExportOptions(kept=kept))
            report, _ = prove(
                model, graphs, ["onnx", *others], Path(patched), Request(kept=kept), timed=lambda stage: nullcontext()
            )
            yield _judge(name, weights, report, graphs, Path(patched))


def _patch(graph: Graph, made: Path, patched: Path) -> None:
    weights = graph.weights()
    file = onnx.load(made)
    for tensor in (tensor for part in all_graphs(file.graph) for tensor in part.initializer):
        if tensor.name in weights:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name].numpy(), tensor.name))
    onnx.save(file, patched / f"{graph.name}.onnx")


def _judge(name: str, weights: str, report: ParityReport, graphs: dict[str, Graph], folder: Path) -> Honest:
    failed = [row for row in report.graphs if not row.passed]
    verdict = "passed" if report.passed else "not judged" if all(row.doubted for row in failed) else "false alarm"
    exact = [row.worst_ratio for row in report.graphs if row.allowed < 1]
    others = [
        [rule(partial(OnnxRuntime.open, folder / f"{key}.onnx"), graph) for key, graph in plain(graphs).items()]
        for rule in (torch_verify_flags, allclose_flags)
    ]
    return Honest(
        architecture=name,
        weights=weights,
        verdict=verdict,
        compared=sum(row.compared for row in report.graphs),
        worst_ratio=max(row.worst_ratio for row in report.graphs if row.allowed > 1),
        worst_structure=max(exact, default=np.nan),
        torch_verify=any(others[0]),
        allclose=any(others[1]),
        quantised=set(QUANTISED) <= {row.format for row in report.graphs},
        findings=tuple(
            f"{row.graph}, {row.format}, {row.runtime}: {item.message}" for row in failed for item in row.findings[:1]
        ),
    )
