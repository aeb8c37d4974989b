"""ONNX files agree with the model at every opset and optimisation level; wrong exports raise an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from exported_models import KINDS, Exported, Exports, shaken
from exported_models import translation as translation_model
from mytx.exporter import ExportError, OptionError, export_bundle
from mytx.exporter.cases.case import small_core
from mytx.exporter.contracts.contract import Contract, TensorSpec
from mytx.exporter.formats.onnx import export as onnx_format
from mytx.exporter.graphs.graph import Graph
from mytx.exporter.graphs.modules import GraphModule
from mytx.exporter.quiet import quiet
from mytx.exporter.runtimes import onnx_runs
from mytx.exporter.runtimes import onnxruntime as runtimes
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime
from plans import BATCH, SOURCE, TARGET

RUNTIMES = [
    "onnxruntime",
    "onnxruntime, 1 thread",
    "onnxruntime, level extended",
    "onnxruntime, level basic",
    "onnxruntime, level off",
    "onnx.reference",
    "onnx.reference, float64",
]


# --- parity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_graph_of_every_kind_of_model_passes(kind: str, exports: Exports) -> None:
    exported = exports(kind)
    for name in exported.graphs:
        reports = exported.verify(name)
        assert [report.findings for report in reports] == [()] * len(RUNTIMES)
        assert [report.runtime for report in reports] == RUNTIMES
        plan = exported.plan(name)
        core = sum(case.core for case in plan)
        asked = {
            "onnxruntime": len(plan),
            "onnx.reference": sum(small_core(case) for case in plan),
            "onnx.reference, float64": sum(case.small for case in plan),
        }
        assert 8 <= asked["onnx.reference"] < core < asked["onnx.reference, float64"] < len(plan)
        for report in reports:
            exact = report.runtime.endswith("float64")
            assert report.passed
            assert (report.graph, report.format) == (name, "onnx")
            assert report.cases == asked.get(report.runtime, core)
            assert report.compared > 50
            assert report.allowed == (0.1 if exact else 4)
            assert report.worst_ratio < report.allowed


def test_a_file_is_run_at_every_optimisation_level_and_on_one_thread() -> None:
    assert {options.level for options in onnx_runs.OPTIONS} == set(runtimes.LEVELS)
    assert {options.threads for options in onnx_runs.OPTIONS} == {0, 1}
    assert [run.runtime for run in onnx_runs.runs()] == RUNTIMES
    assert [run.lifted for run in onnx_runs.runs()] == [False] * 6 + [True]


@pytest.fixture(scope="module")
def traced() -> list[torch.export.ExportedProgram]:
    """The trace of the full graph: it is half of the time, and does not depend on the opset."""
    return []


@pytest.mark.slow
@pytest.mark.parametrize("opset", onnx_format.OPSETS)
def test_every_opset_passes_when_full_is_exported_as_one(
    opset: int,
    translation: Exported,
    traced: list[torch.export.ExportedProgram],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without composing, which every other test does: that the two agree is seen here too."""
    trace = torch.export.export

    def trace_once(*arguments: Any, **options: Any) -> torch.export.ExportedProgram:
        if not traced:
            traced.append(trace(*arguments, **options))
        return traced[0]

    with monkeypatch.context() as patch, quiet():
        patch.setattr(torch.export, "export", trace_once)
        model = onnx_format.to_onnx(translation.graphs["full"], opset)
    onnx_format.finish(model, translation.contract("full"), {})
    onnx_format.save(model, tmp_path / "full.onnx")
    proto = onnx.load(tmp_path / "full.onnx")
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", opset)]
    # https://github.com/onnx/onnx/blob/main/docs/Versioning.md
    assert proto.ir_version == {18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11, 24: 12, 25: 13}[opset]
    reports = translation.verify("full", tmp_path / "full.onnx")
    assert [report.findings for report in reports] == [()] * len(RUNTIMES)
    direct, composed = OnnxRuntime.open(tmp_path / "full.onnx"), OnnxRuntime.open(translation.path("full"))
    for case, expected in zip(translation.plan("full"), translation.expected("full"), strict=True):
        difference = direct.run(case.inputs)["logits"] - composed.run(case.inputs)["logits"]
        assert np.abs(difference).max() <= 8 * expected["logits"].noise


@pytest.mark.parametrize("opset", [-1, 0, 17, 26, 27])
def test_other_opsets_are_refused(opset: int, translation: Exported) -> None:
    with pytest.raises(OptionError, match=f"opset {opset} is not supported") as caught:
        onnx_format.to_onnx(translation.graphs["encoder"], opset)
    assert caught.value.hint == "choose 18 to 25"


# --- the model that is exported --------------------------------------------------------------------------------------


def test_a_model_in_training_that_ran_at_other_lengths_exports_the_same_file_and_stays_in_training(
    translation: Exported, tmp_path: Path
) -> None:
    model = shaken(translation_model())
    model.load_state_dict(translation.model.state_dict())
    for length in (31, 3):
        model(torch.randint(0, 11, (1, length + 1)), torch.randint(0, 13, (1, length)))
    model.train()
    model.my_transformer.decoder.eval()
    model.my_transformer.decoder.layers[1].dropout1.train()
    modes = {name: module.training for name, module in model.named_modules()}
    assert len(set(modes.values())) == 2

    result = export_bundle(model, tmp_path / "bundle", components=["decoder"])
    assert result.passed
    assert {name: module.training for name, module in model.named_modules()} == modes
    found, expected = (onnx.load(path) for path in (tmp_path / "bundle" / "decoder.onnx", translation.path("decoder")))
    assert found.graph.node == expected.graph.node
    assert {tensor.name: tensor.SerializeToString() for tensor in found.graph.initializer} == {
        tensor.name: tensor.SerializeToString() for tensor in expected.graph.initializer
    }


# --- exports that cannot be right ------------------------------------------------------------------------------------


X = TensorSpec("x", "float32", (BATCH, SOURCE))


class Called(GraphModule):
    """A function of ``x`` as a graph's module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__(nn.Identity())
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def small_graph(function: Callable[[Tensor], Tensor], output: TensorSpec) -> Graph:
    return Graph(Contract("encoder", (X,), (output,), "batch first"), Called(function), ())


def sum_over_source(x: Tensor) -> Tensor:
    return x.sum(1, keepdim=True)


def frozen_batch(x: Tensor) -> Tensor:
    return x.reshape(2, -1) * 2


def twice(x: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            small_graph(sum_over_source, TensorSpec("y", "float32", (BATCH, SOURCE))),
            "source may vary, .* fixed it at 1",
        ),
        (small_graph(frozen_batch, X), "could not export the encoder graph"),
        (small_graph(twice, TensorSpec("y", "int64", (BATCH, SOURCE))), "y came out as FLOAT, the contract says int64"),
        (small_graph(twice, TensorSpec("y", "float32", (BATCH,))), r"y came out with shape .* says \['batch'\]"),
        (small_graph(sum_over_source, TensorSpec("y", "float32", (BATCH, 3))), "dimension of 1, the contract says 3"),
        (small_graph(twice, TensorSpec("y", "float32", (BATCH, TARGET))), "took target and source for one dimension"),
    ],
    ids=["dimension fixed", "dimension refused", "dtype", "rank", "size", "dimensions merged"],
)
def test_a_graph_that_comes_out_other_than_its_contract_is_an_error(graph: Graph, message: str) -> None:
    with quiet(), pytest.raises(ExportError, match=message):
        onnx_format.to_onnx(graph)


def test_a_file_that_is_not_valid_onnx_is_an_error(translation: Exported, tmp_path: Path) -> None:
    model = translation.finished("encoder")
    next(node for node in model.graph if node.op_type == "Softmax").op_type = "Softmacks"
    with pytest.raises(ExportError, match=r"invalid encoder\.onnx.*Softmacks") as caught:
        onnx_format.save(model, tmp_path / "encoder.onnx")
    assert "--opset" in caught.value.hint
