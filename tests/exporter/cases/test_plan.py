"""The cases of a plan: sizes, ids, masks and disturbed inputs for every graph."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from exported_models import plain, translation
from mytx.exporter.cases.plan import LEVELS, alike, example, make_plan
from mytx.exporter.contracts.contract import Contract, TensorSpec
from mytx.exporter.graphs.model_graphs import graphs_of
from plans import BATCH, CONTRACTS, SOURCE, kind_of, masks, same, sizes


def test_there_are_at_least_24_cases_and_no_two_are_equal(contract: Contract) -> None:
    plan = make_plan(contract)
    assert len(plan) >= 24
    assert len({case.name for case in plan}) == len(plan)
    assert [pair for pair in itertools.combinations(plan, 2) if same(*pair)] == []


def test_a_step_is_tried_with_no_past_with_a_long_one_and_with_one_to_four_hypotheses() -> None:
    contract = graphs_of(translation(max_length=30))["step"].contract
    plan = make_plan(contract)
    assert len(plan) >= 24
    assert [pair for pair in itertools.combinations(plan, 2) if same(*pair)] == []
    found = [sizes(contract, case) for case in plan]
    assert {0, 1, 4, 29} <= {size["past"] for size in found}
    assert {1, 2, 3, 4} == {size["beams"] for size in found}
    assert any(size["past"] == 0 and size["batch"] > 1 for size in found)


def test_the_same_seed_gives_the_same_cases_and_another_gives_others(contract: Contract) -> None:
    first, again, other = make_plan(contract, 3), make_plan(contract, 3), make_plan(contract, 4)
    for a, b in zip(first, again, strict=True):
        assert (a.name, a.words) == (b.name, b.words)
        assert list(a.inputs) == list(b.inputs) == [spec.name for spec in contract.inputs]
        assert same(a, b)
        assert {name: array.dtype for name, array in a.inputs.items()} == {
            name: array.dtype for name, array in b.inputs.items()
        }
    assert not any(same(a, b) for a, b in zip(first, other, strict=True))


def test_every_input_has_the_contracts_dtype_and_shape(contract: Contract) -> None:
    for case in make_plan(contract):
        lengths = sizes(contract, case)
        for spec in contract.inputs:
            assert str(case.inputs[spec.name].dtype) == spec.dtype
            assert case.inputs[spec.name].shape == spec.shape(lengths)


def test_ids_are_all_in_the_vocabulary_and_use_its_first_and_last(contract: Contract) -> None:
    plan = make_plan(contract)
    for spec in contract.inputs:
        if spec.role == "ids":
            ids = np.concatenate([case.inputs[spec.name].ravel() for case in plan])
            assert set(ids.tolist()) == set(range(spec.limit))


def test_batches_are_one_two_and_odd_and_lengths_surround_the_traced_one(contract: Contract) -> None:
    tried = [sizes(contract, case) for case in make_plan(contract)]
    assert {1, 2, 3, 5} <= {lengths["batch"] for lengths in tried}
    for name in set(contract.axes) - {"batch"}:
        traced = contract.axes[name].traced
        lengths = {case[name] for case in tried}
        assert {1, 3, traced - 1, traced, traced + 1} <= lengths
        assert max(lengths) >= 31


def test_source_and_target_differ_both_ways_and_are_equal_too(contract: Contract) -> None:
    if {"source", "target"} <= set(contract.axes):
        signs = [np.sign(case["source"] - case["target"]) for case in (sizes(contract, c) for c in make_plan(contract))]
        assert min(signs.count(sign) for sign in (-1, 1)) >= 6
        assert signs.count(0) >= 1


def test_only_a_few_cases_have_the_exported_shape(contract: Contract) -> None:
    traced = {name: axis.traced for name, axis in contract.axes.items()}
    others = [case for case in make_plan(contract) if sizes(contract, case) != traced]
    assert len(others) >= 20
    assert sizes(contract, example(contract)) == traced


def test_padding_is_absent_right_left_holed_and_whole(contract: Contract) -> None:
    for spec in contract.inputs:
        if spec.role != "padding":
            continue
        arrays = [case.inputs[spec.name] for case in make_plan(contract)]
        hidden = [array if array.dtype == bool else np.isneginf(array) for array in arrays]
        rows = [row for mask in hidden for row in mask if len(row) > 2]
        kinds = {kind_of(row) for row in rows}
        assert kinds >= {"none", "right", "left", "holes", "whole"}, spec.name
        assert any(mask.all() for mask in hidden), spec.name
        assert any(mask.all(1).any() and not mask.all() for mask in hidden), spec.name


def test_some_queries_may_attend_nowhere_and_most_may(contract: Contract) -> None:
    for role, dtype in itertools.product(("padding", "attention"), ("bool", "float32")):
        arrays = masks(contract, make_plan(contract), role, dtype)
        if arrays:
            dead = np.array(
                [bool((array if array.dtype == bool else np.isneginf(array)).all(-1).any()) for array in arrays]
            )
            assert 2 <= dead.sum() <= len(dead) / 2


def test_bool_attention_masks_are_causal_and_asymmetric(contract: Contract) -> None:
    arrays = [array for array in masks(contract, make_plan(contract), "attention", "bool") if array.shape[-1] > 2]
    if arrays:
        square = [array for array in arrays if array.shape[-1] == array.shape[-2]]
        assert any(np.array_equal(array, np.triu(np.ones_like(array), 1)) for array in square)
        assert sum(not np.array_equal(array, array.swapaxes(-1, -2)) for array in square) >= 12
        assert sum(0 < array.mean() < 1 for array in arrays) >= 12


@pytest.mark.parametrize("role", ["padding", "attention"])
def test_float_masks_have_values_other_than_zero_and_minus_infinity(contract: Contract, role: str) -> None:
    """A runtime that takes a float mask for a bool one must not pass."""
    arrays = masks(contract, make_plan(contract), role, "float32")
    if arrays:
        shaded = [array for array in arrays if (np.isfinite(array) & (array != 0)).any()]
        assert len(shaded) >= 8
        assert any(np.isneginf(array).any() for array in shaded)
        assert any(np.isfinite(array).all() for array in shaded)
        assert not any(np.isnan(array).any() or np.isposinf(array).any() for array in arrays)
        assert sum(bool(set(np.unique(array)) <= {0.0, -np.inf}) for array in arrays) >= 2


def test_masks_for_each_head_differ_between_heads_and_sentences() -> None:
    contract = CONTRACTS["bare, every mask: full"]
    arrays = [case.inputs["tgt_mask"] for case in make_plan(contract)]
    assert all(array.ndim == 3 for array in arrays)
    different = [array for array in arrays if len({matrix.tobytes() for matrix in array}) == len(array) > 2]
    assert len(different) >= 8


@pytest.mark.parametrize("longest", [8, 9, 30])
def test_no_case_is_longer_than_the_positions(longest: int) -> None:
    for graph in plain(graphs_of(translation(max_length=longest))).values():
        plan = make_plan(graph.contract)
        for axis in set(graph.contract.axes) - {"batch"}:
            lengths = {sizes(graph.contract, case)[axis] for case in plan}
            assert max(lengths) == longest
            assert min(lengths) == 1
        assert [pair for pair in itertools.combinations(plan, 2) if same(*pair)] == []


def test_no_case_is_shorter_than_the_minimum() -> None:
    spec = TensorSpec("x", "float32", (replace(BATCH, minimum=2), replace(SOURCE, minimum=4)))
    contract = Contract("encoder", (spec,), (), "batch first")
    tried = [sizes(contract, case) for case in make_plan(contract)]
    assert min(case["batch"] for case in tried) == 2
    assert min(case["source"] for case in tried) == 4


@pytest.mark.parametrize("level", LEVELS)
def test_each_input_is_disturbed_in_one_case_in_every_element_and_nothing_else_is(
    contract: Contract, level: str
) -> None:
    plan = make_plan(contract, level=level)
    base = plan[1]
    disturbed = [case for case in plan if case.group == "disturbed"]
    together = alike(contract.inputs)
    assert {spec.name for specs in together.values() for spec in specs} == {spec.name for spec in contract.inputs}
    for (words, specs), case in zip(together.items(), disturbed, strict=True):
        assert words in case.words
        assert base.name in case.words
        for name, array in case.inputs.items():
            if name in {spec.name for spec in specs}:
                assert array.shape == base.inputs[name].shape
                assert array.dtype == base.inputs[name].dtype
                assert (array != base.inputs[name]).all()
            else:
                assert np.array_equal(array, base.inputs[name])


def test_inputs_of_all_layers_are_disturbed_together() -> None:
    together = alike(graphs_of(translation())["step"].contract.inputs)
    assert list(together) == [
        "tgt",
        "src_key_padding_mask",
        "cross_key_*",
        "cross_value_*",
        "past_key_*",
        "past_value_*",
    ]
    assert {len(specs) for name, specs in together.items() if name.endswith("*")} == {2}
    lone = TensorSpec("image_1", "float32", (BATCH,))
    assert list(alike([lone])) == ["image_1"]


def test_a_graph_whose_parts_are_tested_has_the_shapes_of_the_quick_plan_and_the_whole_core() -> None:
    contract = CONTRACTS["translation: full"]
    every, quick = make_plan(contract), {case.words for case in make_plan(contract, level="quick")}
    shapes = [case.words for case in make_plan(contract, parts_too=True) if case.group == "shapes"]
    assert shapes == [case.words for case in every if case.group == "shapes" and (case.core or case.words in quick)]
    assert len(shapes) == 16
    assert len(make_plan(contract, level="thorough", parts_too=True)) == len(make_plan(contract, level="thorough"))


def test_words_name_every_size_and_the_masks() -> None:
    plan = make_plan(CONTRACTS["bare: full"])
    assert plan[3].words == "source 7, batch 1, target 5, padding none, attention mask random"
    plan = make_plan(CONTRACTS["translation: encoder"])
    assert plan[6].words == "batch 2, source 8, padding holes"
