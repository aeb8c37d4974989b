"""The plan of a graph that searches: what it covers, and that it is reproducible."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from exported_models import couplet, translation
from mytx.exporter.cases.case import Case
from mytx.exporter.cases.identities import whole_plan
from mytx.exporter.cases.plan import LEVELS
from mytx.exporter.cases.search_plan import SMALL, in_range, is_small_search, make_search_plan
from mytx.exporter.contracts.contract import Contract
from mytx.exporter.errors import OptionError
from mytx.exporter.graphs.model_graphs import graphs_of

CONTRACTS: dict[str, Contract] = {
    f"{kind}, {name}": graphs_of(model)[name].contract
    for kind, model in (("translation", translation()), ("couplet", couplet()))
    for name in ("greedy", "generate")
}
GENERATE = CONTRACTS["translation, generate"]
NUMBERS = [spec.name for spec in GENERATE.inputs if spec.role == "number"]
each = pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)


def given(plan: list[Case], name: str) -> set[float]:
    return {case.inputs[name].item() for case in plan if name in case.inputs}


def padding(plan: list[Case]) -> dict[str, np.ndarray]:
    return {case.words: case.inputs["src_key_padding_mask"] for case in plan}


@each
@pytest.mark.parametrize("level", LEVELS)
def test_inputs_are_what_the_contract_says(contract: Contract, level: str) -> None:
    plan = make_search_plan(contract, level=level)
    assert len({case.name for case in plan}) == len(plan)
    for case in plan:
        assert {"src", "src_key_padding_mask"} <= set(case.inputs) <= {spec.name for spec in contract.inputs}
        for spec in contract.inputs:
            if spec.name in case.inputs:
                assert str(case.inputs[spec.name].dtype) == spec.dtype
                assert case.inputs[spec.name].ndim == len(spec.axes)
        src = case.inputs["src"]
        assert src.shape == case.inputs["src_key_padding_mask"].shape
        assert 1 <= src.shape[1] <= (contract.axes["source"].maximum or 0)
        assert 0 <= src.min() <= src.max() < contract.input("src").limit


@each
@pytest.mark.parametrize("level", ["quick", "standard"])
def test_batches_lengths_and_paddings_of_every_kind_are_tried(contract: Contract, level: str) -> None:
    plan = make_search_plan(contract, level=level)
    shapes = {case.inputs["src"].shape for case in plan}
    batches, lengths = ({shape[axis] for shape in shapes} for axis in (0, 1))
    assert {1, 2} < batches
    assert any(batch % 2 and batch > 1 for batch in batches)
    assert len(lengths) >= 5
    masks = padding(plan).values()
    assert any(not mask.any() for mask in masks)
    assert any(mask[:, -1].any() and not mask.all(axis=1).any() for mask in masks)  # on the right
    assert any(mask.all(axis=1).any() for mask in masks)  # a sentence that is nothing else
    if level == "standard":
        assert max(lengths) == min(61, contract.axes["source"].maximum or 0)
        assert any(mask.all() for mask in masks)
        assert any(mask[:, 0].any() and not mask[:, -1].any() for mask in masks)  # on the left


@pytest.mark.parametrize("level", ["quick", "standard", "thorough"])
def test_wishes_of_every_kind_are_made(level: str) -> None:
    plan = make_search_plan(GENERATE, level=level)
    wished = [case for case in plan if case.group == "shapes"]
    assert {1, 2, 4, 5} <= given(plan, "num_beams")
    assert {0.0, 2.0} <= {round(value, 3) for value in given(wished, "length_penalty")}
    assert {round(value, 3) for value in given(wished, "length_penalty")} - {0.0, 1.0}
    assert len(given(wished, "max_length")) >= 4
    assert any(value > 0 for value in given(wished, "min_length"))
    results = [(case.inputs.get("num_hypotheses"), case.inputs.get("num_beams")) for case in wished]
    several = [(int(n), int(beams)) for n, beams in results if n is not None and beams is not None]
    assert any(n == beams > 1 for n, beams in several)
    assert any(1 < n < beams for n, beams in several)
    if level != "quick":
        assert {0.0, 0.6, 1.5, 2.0} <= {round(value, 3) for value in given(wished, "length_penalty")}
        assert any(case.inputs["num_hypotheses"] == 1 and case.inputs.get("num_beams", 0) > 1 for case in wished)


@pytest.mark.parametrize("contract", [GENERATE, CONTRACTS["translation, greedy"]], ids=["generate", "greedy"])
def test_every_case_has_every_number(contract: Contract) -> None:
    for case in make_search_plan(contract):
        assert list(case.inputs) == [spec.name for spec in contract.inputs]
        for spec in contract.inputs[2:]:
            assert case.inputs[spec.name].shape == ()
            assert str(case.inputs[spec.name].dtype) == spec.dtype


def test_numbers_out_of_range_have_cases_of_their_own() -> None:
    outside = [case for case in make_search_plan(GENERATE) if case.group == "range"]
    assert outside
    positions = GENERATE.axes["source"].maximum or 0
    assert any(case.inputs["max_length"] < 1 for case in outside)
    assert any(case.inputs["min_length"] < 0 for case in outside)
    assert any(case.inputs["min_length"] > case.inputs["max_length"] for case in outside)
    assert any(case.inputs["num_beams"] < 1 for case in outside)
    assert any(case.inputs["num_hypotheses"] < 1 for case in outside)
    assert any(case.inputs["num_hypotheses"] > case.inputs["num_beams"] for case in outside)
    assert any(case.inputs.get("length_penalty", 0) < 0 for case in outside)
    for case in make_search_plan(GENERATE):
        if case.group == "shapes":
            assert 1 <= case.inputs.get("max_length", 1) <= positions


def test_a_model_with_few_positions_is_not_asked_for_more() -> None:
    small = graphs_of(translation(max_length=9))["generate"].contract
    assert max(case.inputs["src"].shape[1] for case in make_search_plan(small)) == 9


@each
def test_the_same_seed_gives_the_same_cases_and_another_others(contract: Contract) -> None:
    def values(seed: int) -> list[Any]:
        return [
            {name: array.tolist() for name, array in case.inputs.items()} for case in make_search_plan(contract, seed)
        ]

    assert values(0) == values(0)
    assert values(0) != values(1)


def test_levels_are_parts_of_each_other() -> None:
    plans = {level: make_search_plan(GENERATE, level=level) for level in LEVELS}
    assert len(plans["quick"]) < len(plans["standard"])
    assert len(plans["thorough"]) == 2 * len(plans["standard"])
    words = {level: Counter(case.words for case in plan) for level, plan in plans.items()}
    assert words["quick"] <= words["standard"] <= words["thorough"]
    sources = {case.inputs["src"].tobytes() for case in plans["thorough"]}
    assert len(sources) == len(plans["thorough"])
    with pytest.raises(OptionError, match="there is no plan 'slow'"):
        make_search_plan(GENERATE, level="slow")


def test_the_whole_plan_of_a_search_is_the_search_plan_and_a_users_own_cases() -> None:
    own = make_search_plan(GENERATE)[0]
    whole = whole_plan(GENERATE, "quick", [own])
    assert [case.words for case in whole[:-1]] == [case.words for case in make_search_plan(GENERATE, level="quick")]
    assert whole[-1].inputs is own.inputs
    assert len({case.name for case in whole}) == len(whole)


def test_numbers_are_in_range_but_in_the_cases_that_are_to_have_others() -> None:
    for contract in (GENERATE, CONTRACTS["translation, greedy"]):
        for case in make_search_plan(contract, level="thorough"):
            assert in_range(contract, case.inputs) == (case.group != "range"), case.words


def test_a_slow_runtime_is_asked_for_little() -> None:
    plan = make_search_plan(GENERATE)
    small = [case for case in plan if case.small]
    assert len(plan) / 2 <= len(small) < len(plan)
    for case in plan:
        wishes = {name: int(case.inputs[name]) for name in ("num_beams", "max_length") if name in case.inputs}
        longest = max(1, wishes.get("max_length", 64))
        assert case.small == (len(case.inputs["src"]) * max(1, wishes.get("num_beams", 1)) * longest <= SMALL)
    assert {1, 2, 5} <= given(small, "num_beams")
    assert any(len(case.inputs["src"]) > 1 for case in small)


def test_a_case_of_the_users_is_small_by_its_numbers_and_the_defaults() -> None:
    src = np.zeros((2, 3), dtype=np.int64)
    assert not is_small_search({"src": src, "max_length": np.array(64)})
    assert is_small_search({"src": src, "max_length": np.array(8)})
    assert not is_small_search({"src": src, "max_length": np.array(8), "num_beams": np.array(5)})
    assert is_small_search({"src": src, "max_length": np.array(-8), "num_beams": np.array(-5)})
