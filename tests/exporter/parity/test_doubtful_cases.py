"""If a case fails by little, its noise is measured again with more runs; a real fault still fails."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from exported_models import Exported
from mytx.exporter.cases.case import Case
from mytx.exporter.parity.compare import FACTOR, FAIL, ULP, Comparison, Expected
from mytx.exporter.parity.reference import measure_more
from mytx.exporter.parity.report import GraphReport
from mytx.exporter.parity.verify import Measure, _doubtful, verify_file
from mytx.exporter.runtimes import onnx_runs
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime
from planting import constant, insert, node, set_attribute


class Doubt:
    """onnxruntime, in all ways that it is tried, with an error of so many times the allowance in the first cases.

    Measurements are counted.
    """

    def __init__(self, exported: Exported, monkeypatch: pytest.MonkeyPatch, ratio: float, cases: int) -> None:
        self.exported = exported
        self.plan: list[Case] = exported.plan("encoder")
        self.expected = list(exported.expected("encoder"))
        self.asked: list[int] = []
        honest = OnnxRuntime.run

        def run(runtime: OnnxRuntime, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            outputs = honest(runtime, inputs)
            for case, expected in zip(self.plan[:cases], exported.expected("encoder"), strict=False):
                if case.inputs is inputs:
                    reference = expected["memory"]
                    allowance = reference.noise + ULP * np.abs(reference.values).max()
                    memory = reference.values.copy()
                    memory.flat[0] += ratio * allowance
                    outputs = {"memory": memory.astype(np.float32)}
            return outputs

        monkeypatch.setattr(OnnxRuntime, "run", run)

    def measure(self, factor: float, index: int) -> dict[str, Expected]:
        self.asked.append(index)
        before = self.expected[index]["memory"]
        self.expected[index] = {"memory": replace(before, noise=factor * before.noise)}
        return self.expected[index]

    def verify(self, factor: float | None) -> list[GraphReport]:
        measure = None if factor is None else partial(self.measure, factor)
        return verify(self.exported, "encoder", self.exported.path("encoder"), self.expected, measure)


def verify(
    exported: Exported, name: str, path: Path, expected: list[dict[str, Expected]], measure: Measure | None
) -> list[GraphReport]:
    """Reports on a file in every way that onnxruntime runs it."""
    runs = [run for run in onnx_runs.runs() if run.runtime.startswith("onnxruntime")]
    plan = [replace(case, core=True) for case in exported.plan(name)]  # every way runs every case
    reports = verify_file(path, exported.contract(name), plan, expected, runs, format_name="onnx", measure=measure)
    assert len(reports) == len(onnx_runs.OPTIONS)
    return reports


@pytest.mark.parametrize("cases", [1, 3])
def test_a_few_cases_that_fail_by_little_pass_when_more_runs_are_as_far_off(
    cases: int, translation: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubt = Doubt(translation, monkeypatch, 8.0, cases)
    assert not any(report.passed for report in doubt.verify(None))
    assert doubt.asked == []
    reports = doubt.verify(10.0)
    assert all(report.passed for report in reports)
    assert all(report.worst_ratio < 4 for report in reports)
    assert doubt.asked == list(range(cases))  # once: the other ways to run it have them already


def test_a_case_counts_once_however_many_outputs_are_off() -> None:
    off = Comparison("output", 1.0, 1.0, 5.0, FAIL)
    assert _doubtful({"00": [off] * 4, "01": [off]}, FACTOR) == {"00", "01"}
    assert _doubtful({f"{number:02d}": [off] for number in range(4)}, FACTOR) == set()


def test_they_still_fail_when_more_runs_are_not_as_far_off(
    translation: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubt = Doubt(translation, monkeypatch, 8.0, 1)
    reports = doubt.verify(1.1)
    assert not any(report.passed for report in reports)
    assert all(len(report.findings) == 1 for report in reports)


@pytest.mark.parametrize(("ratio", "cases"), [(8.0, 4), (8.0, 30), (17.0, 1), (1e6, 1)])
def test_many_cases_or_large_errors_get_no_second_measurement(
    ratio: float, cases: int, translation: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubt = Doubt(translation, monkeypatch, ratio, cases)
    reports = doubt.verify(1e9)
    assert not any(report.passed for report in reports)
    assert doubt.asked == []


def test_an_honest_file_needs_no_second_measurement(translation: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    doubt = Doubt(translation, monkeypatch, 3.0, 30)
    assert all(report.passed for report in doubt.verify(10.0))
    assert doubt.asked == []


def test_more_runs_raise_the_noise_of_that_case_alone_and_change_no_value(translation: Exported) -> None:
    graph, plan = translation.graphs["full"], translation.plan("full")
    before = translation.expected("full")
    references = list(before)
    wanted = range(4, 9)
    state = {name: tensor.clone() for name, tensor in translation.model.state_dict().items()}
    for index in wanted:
        result = measure_more(translation.model, graph, plan, references, index)
        assert references[index] is result
        assert before[index]["logits"].noise <= result["logits"].noise < 20 * before[index]["logits"].noise
        assert np.array_equal(result["logits"].values, before[index]["logits"].values)
    # The largest of 33 errors: now and then it is one of the first five.
    raised = [index for index in wanted if references[index]["logits"].noise > before[index]["logits"].noise]
    assert len(raised) >= 3
    assert all(references[i] is before[i] for i in range(len(before)) if i not in wanted)
    for name, tensor in translation.model.state_dict().items():
        assert torch.equal(tensor, state[name])


@pytest.mark.parametrize("fault", ["epsilon", "scale"])
def test_a_planted_fault_does_not_pass_by_more_runs(fault: str, translation: Exported, tmp_path: Path) -> None:
    model = onnx.load(translation.path("decoder"))
    graph = model.graph
    if fault == "epsilon":
        set_attribute(node(graph, "LayerNormalization", "layers.1.norm2"), "epsilon", 1e-4)
    else:
        last = next(found for found in graph.node if found.output[0] == "logits")
        factor = constant(graph, np.array(1 + 1e-5, np.float32))
        last.input[0] = insert(graph, last, "Mul", [last.input[0], factor], "scaled")
    onnx.save(model, tmp_path / "decoder.onnx")
    plan, references = translation.plan("decoder"), list(translation.expected("decoder"))
    measure = partial(measure_more, translation.model, translation.graphs["decoder"], plan, references)
    reports = verify(translation, "decoder", tmp_path / "decoder.onnx", references, measure)
    assert not any(report.passed for report in reports)
