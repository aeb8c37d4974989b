"""The full graph by cached steps gives the same result, and a past that is kept wrongly is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from exported_models import Exported
from mytx.exporter.cases.case import Array, Case
from mytx.exporter.cases.plan import step_cases
from mytx.exporter.parity.report import GraphReport
from mytx.exporter.parity.verify import verify_file
from mytx.exporter.runtimes.eager import Eager
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime
from mytx.exporter.runtimes.run import Run, composed_runs, unpadded_target
from mytx.exporter.runtimes.runtime import Description, Runtime

Change = Callable[[dict[str, Array]], dict[str, Array]]


class Changed:
    """A runtime whose inputs or outputs are changed."""

    def __init__(self, inner: Runtime, *, before: Change = dict, after: Change = dict) -> None:
        self.inner = inner
        self.before = before
        self.after = after

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return self.after(self.inner.run(self.before(dict(inputs))))

    def describe(self) -> Description:
        return self.inner.describe()


def past(change: Callable[[str, Array], Array], prefix: str = "past_") -> Change:
    """``change`` in each key and value of the past."""
    return lambda arrays: {
        name: change(name, array) if name.startswith(prefix) else array for name, array in arrays.items()
    }


def reported(exported: Exported, make: Callable[[Runtime], Runtime], *, eager: bool = True) -> GraphReport:
    """The report on the full graph by cached steps, where ``make`` of a step takes the steps."""
    plan = [replace(case, core=True) for case in exported.plan("full") if case.small and case.group == "shapes"]
    plan += step_cases(plan)
    expected = exported.references("full", plan)

    def open_graph(name: str) -> Runtime:
        runtime = Eager(exported.every[name]) if eager else OnnxRuntime.open(exported.path(name))
        return make(runtime) if name == "step" else runtime

    first = Run("first", lambda path: open_graph("full"))
    (run,) = composed_runs(first, open_graph, exported.contract("full"), ["prefill", "step"])
    assert run.runtime == "first, N cached steps"
    with torch.inference_mode():
        (report,) = verify_file(Path("full"), exported.contract("full"), plan, expected, [run], format_name="eager")
    assert report.cases == sum(map(unpadded_target, plan)) > 10
    return report


@pytest.mark.parametrize("kind", ["translation", "couplet", "norm first, gelu, no bias", "lively"])
def test_cached_steps_are_the_full_graph(kind: str, exports: Callable[[str], Exported]) -> None:
    report = reported(exports(kind), lambda step: step)
    assert report.passed, report.findings[:3]
    assert report.worst_ratio < 4


def test_the_files_are_too(exports: Callable[[str], Exported]) -> None:
    assert reported(exports("lively"), lambda step: step, eager=False).passed


def shorter(name: str, cache: Array) -> Array:
    """Without the first position, and so all others are one early."""
    return cache[..., 1:] if "_key_" in name else cache[..., 1:, :]


def longer(name: str, cache: Array) -> Array:
    """With one more in front, and so all others are one late."""
    batch, beams, heads = cache.shape[:3]
    width = cache.shape[3] if "_key_" in name else cache.shape[4]
    more = np.zeros((batch, beams, heads, *((width, 1) if "_key_" in name else (1, width))), dtype=cache.dtype)
    return np.concatenate([more, cache], axis=4 if "_key_" in name else 3)


def layers_swapped(outputs: dict[str, Array]) -> dict[str, Array]:
    keys = {"present_key_0": "present_key_1", "present_key_1": "present_key_0"}
    return {name: outputs[keys.get(name, name)] for name in outputs}


FAULTS: dict[str, Callable[[Runtime], Runtime]] = {
    "shifted": lambda step: Changed(
        step, before=past(lambda name, array: np.roll(array, 1, -1) if "_key_" in name else array)
    ),
    "not reordered": lambda step: Changed(step, after=past(lambda _, array: array[::-1], "present_")),
    "values not reordered": lambda step: Changed(
        step, after=past(lambda name, array: array[::-1] if "_value_" in name else array, "present_")
    ),
    "one position short": lambda step: Changed(step, before=past(shorter)),
    "one position long": lambda step: Changed(step, before=past(longer)),
    "of the other layer": lambda step: Changed(step, after=layers_swapped),
    "rounded to float16": lambda step: Changed(
        step, after=past(lambda _, array: array.astype(np.float16).astype(array.dtype), "present_")
    ),
}


@pytest.mark.parametrize("make", FAULTS.values(), ids=FAULTS)
def test_a_past_that_is_not_kept_as_it_should_be_is_found(
    make: Callable[[Runtime], Runtime], exports: Callable[[str], Exported]
) -> None:
    report = reported(exports("lively"), make)
    assert not report.passed
    assert {finding.check for finding in report.findings} == {"rounding"}
    assert report.worst_ratio > 4


def test_cases_with_padding_in_the_target_are_tried_without_it(exports: Callable[[str], Exported]) -> None:
    plan = exports("translation").plan("full")
    more = step_cases(plan)
    shapes = [case for case in plan if case.group == "shapes" and case.core and case.small]
    padded = [case for case in shapes if case.inputs["tgt_key_padding_mask"].any()]
    assert len(more) == len(padded) > 3
    assert [case.name for case in more] == [f"{len(plan) + number:02d}" for number in range(len(more))]
    for case, before in zip(more, padded, strict=True):
        assert case.group == "steps"
        assert unpadded_target(case)
        assert not unpadded_target(before)
        assert not case.inputs["tgt_key_padding_mask"].any()
        assert all(case.inputs[name] is before.inputs[name] for name in ("src", "tgt", "src_key_padding_mask"))


def test_a_case_of_the_users_is_not_taken_by_steps() -> None:
    tgt = np.zeros((1, 2), dtype=bool)
    assert not unpadded_target(Case("00", {"tgt_key_padding_mask": tgt}, "", "own"))
    assert unpadded_target(Case("00", {"tgt_key_padding_mask": tgt}, "", "shapes"))
