"""The user's own cases for graphs with a cache, in which some numbers may be left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exported_models import Exported, translation
from mytx.exporter import OptionError
from mytx.exporter.cases.case import Case
from mytx.exporter.cases.user_cases import read_cases
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.parity.verify import verify_file
from mytx.exporter.runtimes import onnx_runs

CONTRACTS = {name: graph.contract for name, graph in graphs_of(translation(max_length=20)).items()}
SOURCE: dict[str, Any] = {"src": np.arange(6).reshape(2, 3), "src_key_padding_mask": np.zeros((2, 3), bool)}


def read(folder: Path, inputs: dict[str, Any]) -> dict[str, list[Case]]:
    np.savez(folder / "mine.npz", **inputs)
    return read_cases([folder / "mine.npz"], list(CONTRACTS.values()))


def step_inputs(past: int) -> dict[str, Any]:
    """For two sentences with three hypotheses each, and a source of five."""
    sizes = {"batch": 2, "beams": 3, "source": 5, "past": past}
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {}
    for spec in CONTRACTS["step"].inputs:
        shape = spec.shape(sizes)
        made[spec.name] = rng.standard_normal(shape).astype(np.float32)
        if spec.role != "values":
            made[spec.name] = rng.integers(0, 2, shape).astype(spec.dtype)
    return made


@pytest.mark.parametrize("past", [0, 1, 19])
def test_a_case_of_a_step_may_have_any_past(past: int, tmp_path: Path) -> None:
    found = read(tmp_path, step_inputs(past))
    assert list(found) == ["step"]
    (case,) = found["step"]
    assert case.words == f"mine.npz, batch 2, beams 3, source 5, past {past}"
    assert case.inputs["past_value_1"].shape == (2, 3, 4, past, 4)


def test_a_past_without_room_for_the_new_position_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="past is 20"):
        read(tmp_path, step_inputs(20))


def test_pasts_of_different_lengths_are_refused(tmp_path: Path) -> None:
    inputs = step_inputs(4) | {"past_key_1": step_inputs(3)["past_key_1"]}
    with pytest.raises(OptionError, match=r"past_key_1 has shape \[2, 3, 4, 4, 3\]"):
        read(tmp_path, inputs)


def test_ids_and_padding_alone_are_a_case_of_what_takes_nothing_else(tmp_path: Path) -> None:
    assert set(read(tmp_path, SOURCE)) == {"encoder", "prefill"}


@pytest.mark.parametrize(
    ("numbers", "graphs"),
    [
        ({"max_length": np.array(9)}, {"greedy", "generate"}),
        ({"length_penalty": np.array(0.5, np.float32)}, {"greedy", "generate"}),
        ({"num_beams": np.array(3)}, {"generate"}),
        ({"num_beams": np.array(3), "num_hypotheses": np.array(2), "max_length": np.array(4)}, {"generate"}),
    ],
)
def test_some_of_the_numbers_make_it_a_case_of_a_search(
    numbers: dict[str, Any], graphs: set[str], tmp_path: Path
) -> None:
    found = read(tmp_path, SOURCE | numbers)
    assert set(found) == graphs
    for (case,) in found.values():
        assert {*SOURCE, *numbers} < set(case.inputs)
        assert all(case.inputs[name] == value and case.inputs[name].shape == () for name, value in numbers.items())


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"num_beams": np.array(3, np.int32)}, "num_beams is int32"),
        ({"num_beams": np.array([3])}, r"num_beams has shape \[1\]"),
        ({"length_penalty": np.array(0.5)}, "length_penalty is float64"),
        ({"length_penalty": np.array(np.nan, np.float32)}, "length_penalty has NaN or infinity"),
        ({"num_beams": np.array(3), "beams": np.array(3)}, "which no graph takes"),
    ],
)
def test_a_number_of_another_kind_is_refused(numbers: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words):
        read(tmp_path, SOURCE | numbers)


def test_a_long_search_is_not_asked_of_slow_runtimes(tmp_path: Path) -> None:
    numbers = {"max_length": np.array(4), "num_beams": np.array(2)}
    assert read(tmp_path, SOURCE | numbers)["generate"][0].small
    assert not read(tmp_path, SOURCE | numbers | {"max_length": np.array(20)})["generate"][0].small
    assert not read(tmp_path, SOURCE | {"num_beams": np.array(5)})["generate"][0].small  # 20 steps by default


def test_a_case_of_ones_own_is_run_and_judged(tmp_path: Path, exports: Callable[[str], Exported]) -> None:
    exported = exports("lively")
    (case,) = read(tmp_path, SOURCE | {"max_length": np.array(7), "num_beams": np.array(2)})["generate"]
    expected = exported.references("generate", [case])
    for outputs, passed in ((expected[0], True), (exported.references("generate", [_other(case)])[0], False)):
        reports = verify_file(
            exported.path("generate"),
            exported.contract("generate"),
            [case],
            [outputs],
            onnx_runs.runs()[:1],
            format_name="onnx",
        )
        assert [report.passed for report in reports] == [passed]


def _other(case: Case) -> Case:
    return Case("", {**case.inputs, "src": 10 - case.inputs["src"]}, "", "own")
