"""Tiny models of every kind, each exported once a session, and their files."""

from __future__ import annotations

import copy
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from torch import nn

from kept import made_once
from mytx.exporter.cases.case import Case
from mytx.exporter.cases.identities import whole_plan
from mytx.exporter.contracts.contract import Contract
from mytx.exporter.formats.onnx import export as onnx_format
from mytx.exporter.formats.onnx import files as onnx_files
from mytx.exporter.formats.quantisation import rule_of
from mytx.exporter.formats.table import FORMATS, PLAIN, ExportOptions
from mytx.exporter.graphs.graph import Graph
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.parity.compare import Expected
from mytx.exporter.parity.noise import Noise
from mytx.exporter.parity.prove import weights_of_file
from mytx.exporter.parity.quantised import Truth, dequantised, truths
from mytx.exporter.parity.reference import compute_references
from mytx.exporter.parity.report import GraphReport
from mytx.exporter.parity.search_reference import search_references
from mytx.exporter.parity.verify import verify_file
from mytx.exporter.parity.weights import find_weights
from mytx.exporter.quiet import quiet
from mytx.exporter.runtimes import onnx_runs
from mytx.models import ClassificationModel, CoupletModel, Model, TranslationModel
from mytx.transformer import MyTransformer

# Four heads: two would stand for the traced batch in a shape, too.
TRANSLATION = {"d_model": 16, "nhead": 4, "num_encoder_layers": 1, "num_decoder_layers": 2, "dim_feedforward": 24}
EVERY_MASK = (
    "src_mask:bool,tgt_mask:3d,memory_mask:float,"
    "src_key_padding_mask:float,tgt_key_padding_mask:bool,memory_key_padding_mask:float"
)


def translation(**changes: object) -> TranslationModel:
    """1 encoder layer, 2 decoder layers, vocabularies of 11 and 13, 64 positions."""
    return TranslationModel(11, 13, **{**TRANSLATION, "max_length": 64, **changes})  # type: ignore[arg-type]


def couplet() -> CoupletModel:
    return CoupletModel(13, 16, 2, 2, 1, 24, max_length=40)


def classification(pooling: str, **changes: object) -> ClassificationModel:
    sizes = {"dim_classification": 10, "num_classification": 3, "max_length": 64}
    return ClassificationModel(11, 16, 2, 1, 24, pooling=pooling, **{**sizes, **changes})  # type: ignore[arg-type]


def lively() -> TranslationModel:
    """A model whose next id depends on the source, the position and the past, so that sentences end early, late and not
    at all. Others with random weights say the same id for ever.
    """
    torch.manual_seed(21)
    model = translation(norm_first=True)
    table = model.pos_embedding.pe
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
        model.classification.weight.mul_(0.67)
        model.classification.bias[model.config.eos_id] += 1.5
        table.copy_(3.0 * torch.randn(table.shape, generator=torch.Generator().manual_seed(1)))
    return model


# How each kind is built, and its mask inputs.
KINDS: dict[str, tuple[Callable[[], Model], str | None]] = {
    "translation": (translation, None),
    "couplet": (couplet, None),
    "average pooling": (lambda: classification("avg"), None),
    "last pooling, silu": (lambda: classification("last", activation="silu", norm_first=True), None),
    "upstream pooling": (lambda: classification("upstream-sum"), None),
    "bare": (lambda: MyTransformer(16, 2, 2, 1, 24), None),
    "bare, every mask": (lambda: MyTransformer(16, 2, 1, 1, 24), EVERY_MASK),
    "norm first, gelu, no bias": (
        lambda: translation(num_decoder_layers=1, activation="gelu", norm_first=True, bias=False, final_norm=False),
        None,
    ),
}
# Those for tests of searches, too.
KEPT = re.compile(r"layers\.0\.(self_attn\.[qkv]_proj|linear1)\.weight|embedding\.weight")
EVERY_KIND = {**KINDS, "lively": (lively, None)}


def build(kind: str) -> Model:
    """A model of ``kind`` in evaluation mode, with weights of which none is 0 or 1."""
    torch.manual_seed(20)
    return shaken(EVERY_KIND[kind][0]())


def shaken(model: Model) -> Model:
    """``model`` in evaluation mode with every parameter moved: biases are 0 and norms 1 when they are new."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def plain(graphs: dict[str, Graph]) -> dict[str, Graph]:
    """Those of ``graphs`` that do not decode."""
    return {name: graph for name, graph in graphs.items() if name in PLAIN}


def kept_of(model: nn.Module) -> frozenset[str]:
    """Weights that stay float32 in files that are ``auto``, where no task chooses them."""
    return frozenset(name for name in model.state_dict() if KEPT.search(name))


class Exported:
    """A model, and its graphs as files in ``folder``. Everything is made when it is first asked for, and kept.

    ``every`` has all graphs; ``graphs`` those that do not decode, which most tests are about.
    """

    def __init__(self, model: Model, masks: str | None, folder: Path) -> None:
        self.model = model
        self.every = graphs_of(model, masks)
        self.graphs = plain(self.every)
        self.folder = folder
        self._raw: dict[str, ir.Model] = {}
        self._plans: dict[str, list[Case]] = {}
        self._expected: dict[str, list[dict[str, Expected]]] = {}
        self._noise: dict[str, Noise] = {}
        self._quantised_noises: dict[tuple[str, str], list[tuple[Truth, Noise]]] = {}

    def raw(self, name: str) -> ir.Model:
        """A graph as it is exported or composed, before the finish."""
        if name not in self._raw:
            with quiet():
                self._raw[name] = onnx_files.made(self.every, name, self.raw, onnx_format.DEFAULT_OPSET)
        return self._raw[name]

    def finished(self, name: str, producer: str = "0.0.0") -> ir.Model:
        """A graph as it is saved."""
        model = self.raw(name).clone()
        onnx_format.finish(model, self.contract(name), {"mytx.version": producer})
        return model

    def path(self, name: str) -> Path:
        """The saved file."""
        path = self.folder / f"{name}.onnx"
        return made_once(path, lambda new: onnx_format.save(self.finished(name), new))

    def quantised(self, name: str, precision: str = "int8") -> Path:
        """The saved file in a precision."""
        known = FORMATS[precision]

        def make(new: Path) -> None:
            shutil.copy(self.path(name), new.parent)
            known.load_exporter().export(
                self.every, name, new.parent, ExportOptions(producer="0.0.0", kept=kept_of(self.model))
            )

        self.path(name)
        return made_once(self.folder / known.file(name), make)

    def quantised_noises(self, name: str, precision: str = "int8") -> list[tuple[Truth, Noise]]:
        """What that file is held against, as a proof has it. To be used inside of ``dequantised(model, …)``."""
        key = (name, precision)
        if key not in self._quantised_noises:
            known = FORMATS[precision]
            rule = rule_of(known, kept_of(self.model))
            with dequantised(self.model, rule):
                self._quantised_noises[key] = [
                    (truth, Noise(self.model, truth.graph, truth.plan, other=truth.other))
                    for truth in truths(known, rule, self.every[name], self.plan(name))
                ]
        return [(truth, _copied(noise)) for truth, noise in self._quantised_noises[key]]

    def contract(self, name: str) -> Contract:
        return self.every[name].contract

    def plan(self, name: str) -> list[Case]:
        if name not in self._plans:
            self._plans[name] = whole_plan(self.contract(name), present=self.every)
        return self._plans[name]

    def expected(self, name: str) -> list[dict[str, Expected]]:
        """The references of the plan."""
        if name not in self._expected:
            self._expected[name] = self.references(name, self.plan(name))
        return self._expected[name]

    def noise(self, name: str) -> Noise:
        """The references of the plan as an export has them: the noise of most cases measured by one run."""
        if name not in self._noise:
            self._noise[name] = Noise(self.model, self.every[name], self.plan(name))
        return _copied(self._noise[name])

    def references(self, name: str, plan: list[Case]) -> list[dict[str, Expected]]:
        """The references of other cases."""
        compute = search_references if self.contract(name).searches else compute_references
        return compute(self.model, self.every[name], plan)

    def weights(self, name: str) -> dict[str, np.ndarray]:
        return weights_of_file(FORMATS["onnx"], self.every[name])

    def verify(self, name: str, path: Path | None = None) -> list[GraphReport]:
        """Reports on the saved file, or on another that stands for it, in each way that it can be run."""
        path = path or self.path(name)
        found = find_weights("onnx", path, self.weights(name))
        plan, expected = self.plan(name), self.expected(name)
        return verify_file(path, self.contract(name), plan, expected, onnx_runs.runs(), format_name="onnx", found=found)


def _copied(noise: Noise) -> Noise:
    kept = copy.copy(noise)
    kept.plan, kept.references, kept._settled = list(kept.plan), list(kept.references), set(kept._settled)
    return kept


Exports = Callable[[str], Exported]
