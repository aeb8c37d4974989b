"""No false alarms: honest files pass, whatever their weights."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from exported_models import Exported
from onnx import numpy_helper

from mytx.exporter.reference import compute_references
from mytx.exporter.verify import verify_onnx

WEIGHTS = [(0, 0.05), (1, 0.2), (2, 0.2), (3, 0.5), (4, 1.0), (5, 2.0)]


@pytest.mark.parametrize(("seed", "spread"), WEIGHTS)
def test_honest_files_pass_with_whatever_weights(
    seed: int, spread: float, translation: Exported, tmp_path: Path
) -> None:
    """The same graphs with other weights in them, from almost flat to so large that attention picks single keys."""
    model = translation.model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.Generator().manual_seed(seed)
    try:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
        for name, graph in translation.graphs.items():
            weights = translation.weights(name)
            file = onnx.load(translation.path(name))
            for tensor in file.graph.initializer:
                if tensor.name in weights:
                    tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
            onnx.save(file, tmp_path / f"{name}.onnx")
            plan = translation.plan(name)
            expected = compute_references(model, graph, plan)
            reports = verify_onnx(tmp_path / f"{name}.onnx", graph.contract, plan, expected, weights)
            assert [report.findings for report in reports] == [(), ()]
            assert all(report.passed for report in reports)
    finally:
        model.load_state_dict(before)


def test_the_honest_files_of_this_module_pass_when_only_copied(translation: Exported, tmp_path: Path) -> None:
    """So that what is found above is the fault, not the way it was planted."""
    for name in translation.graphs:
        onnx.save(onnx.load(translation.path(name)), tmp_path / f"{name}.onnx")
        assert all(report.passed for report in translation.verify(name, tmp_path / f"{name}.onnx"))
