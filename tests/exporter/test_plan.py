"""The plan: what it must contain, whatever the graph."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from exported_models import KINDS, build, plain, translation

from mytx.exporter import OptionError
from mytx.exporter.contract import Axis, Contract, TensorSpec
from mytx.exporter.graphs import graphs_of
from mytx.exporter.plan import (
    LEVELS,
    LONG,
    Case,
    attention_mask,
    disturb,
    example,
    few_cases,
    fill,
    make_plan,
    optional_cases,
    padding_mask,
)

CONTRACTS = {
    f"{kind}: {name}": graph.contract
    for kind, (_, masks) in KINDS.items()
    for name, graph in plain(graphs_of(build(kind), masks)).items()
}
FLEXIBLE = {
    f"{kind}: {name}": graph.flexible
    for kind, (_, masks) in KINDS.items()
    for name, graph in plain(graphs_of(build(kind), masks)).items()
}
BATCH, SOURCE, TARGET = Axis("batch", traced=2), Axis("source", traced=7), Axis("target", traced=5)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "contract" in metafunc.fixturenames:
        metafunc.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS.keys())
    if "flexible" in metafunc.fixturenames:
        metafunc.parametrize("flexible", FLEXIBLE.values(), ids=FLEXIBLE.keys())


def sizes(contract: Contract, case: Case) -> dict[str, int]:
    """The length of each axis, read from the shapes of a case."""
    found = {}
    for spec in contract.inputs:
        for axis, size in zip(spec.axes, case.inputs[spec.name].shape, strict=True):
            if isinstance(axis, Axis):
                assert size % axis.times == 0
                assert found.setdefault(axis.name, size // axis.times) == size // axis.times
    return found


def masks(contract: Contract, plan: list[Case], role: str, dtype: str) -> list[np.ndarray]:
    names = [spec.name for spec in contract.inputs if (spec.role, spec.dtype) == (role, dtype)]
    return [case.inputs[name] for case in plan for name in names]


def same(a: Case, b: Case) -> bool:
    return all(np.array_equal(a.inputs[name], b.inputs[name], equal_nan=True) for name in a.inputs)


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


def kind_of(row: np.ndarray) -> str:
    """What a row of a padding mask is: ``right`` for padding at the end, and so on."""
    real = np.flatnonzero(~row)
    if not row.any():
        return "none"
    if len(real) == 0:
        return "whole"
    if len(real) != real[-1] - real[0] + 1:
        return "holes"
    return {(True, False): "left", (False, True): "right"}.get((bool(row[0]), bool(row[-1])), "both")


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
    for spec, case in zip(contract.inputs, disturbed, strict=True):
        assert spec.name in case.words
        assert base.name in case.words
        for name, array in case.inputs.items():
            if name == spec.name:
                assert array.shape == base.inputs[name].shape
                assert array.dtype == base.inputs[name].dtype
                assert (array != base.inputs[name]).all()
            else:
                assert np.array_equal(array, base.inputs[name])


def test_words_name_every_size_and_the_masks() -> None:
    plan = make_plan(CONTRACTS["bare: full"])
    assert plan[3].words == "source 7, batch 1, target 5, padding none, attention mask random"
    plan = make_plan(CONTRACTS["translation: encoder"])
    assert plan[6].words == "batch 2, source 8, padding holes"


# --- levels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_is_numbered_through_and_the_same_each_time(contract: Contract, level: str) -> None:
    first, again = make_plan(contract, level=level), make_plan(contract, level=level)
    assert [case.name for case in first] == [f"{number:02d}" for number in range(len(first))]
    for a, b in zip(first, again, strict=True):
        assert (a.words, a.group, a.small) == (b.words, b.group, b.small)
        assert same(a, b)
    assert [pair for pair in itertools.combinations(first, 2) if same(*pair)] == []
    assert {case.group for case in first} == {"shapes", "disturbed"}
    assert all(case.same_as is None for case in first)


@pytest.mark.parametrize("level", ["", "slow", "Quick"])
def test_a_level_that_there_is_not_is_refused_with_those_that_there_are(level: str) -> None:
    with pytest.raises(OptionError, match=f"there is no plan '{level}'") as caught:
        make_plan(CONTRACTS["translation: encoder"], level=level)
    assert caught.value.hint == "choose from quick, standard, thorough"


def test_quick_is_a_part_of_standard_and_standard_of_thorough(contract: Contract) -> None:
    quick, standard, thorough = (make_plan(contract, level=level) for level in LEVELS)
    assert len(quick) < 0.6 * len(standard)
    assert len(standard) < 0.6 * len(thorough)
    assert all(map(same, standard, make_plan(contract)))
    for part, whole in ((quick, standard), (standard, thorough)):
        assert all(any(same(case, other) for other in whole) for case in part)


def test_quick_still_has_every_kind_of_shape_and_padding(contract: Contract) -> None:
    quick = make_plan(contract, level="quick")
    tried = [sizes(contract, case) for case in quick]
    traced = {name: axis.traced for name, axis in contract.axes.items()}
    assert {1, 2, 3} <= {lengths["batch"] for lengths in tried}
    assert sum(lengths != traced for lengths in tried) >= 6
    for name in set(contract.axes) - {"batch"}:
        assert {1, traced[name]} <= {lengths[name] for lengths in tried}
        assert max(lengths[name] for lengths in tried) >= 11
    for spec in contract.inputs:
        if spec.role == "padding":
            arrays = [case.inputs[spec.name] for case in quick]
            found = [array if array.dtype == bool else np.isneginf(array) for array in arrays]
            kinds = {kind_of(row) for mask in found for row in mask if len(row) > 2}
            assert kinds >= {"none", "right", "left", "holes", "whole"}, spec.name


def test_thorough_has_long_sequences_where_the_model_takes_them(contract: Contract) -> None:
    longest = dict.fromkeys(contract.axes, 0)
    for case in make_plan(contract, level="thorough"):
        for name, size in sizes(contract, case).items():
            longest[name] = max(longest[name], size)
    for name in set(contract.axes) - {"batch"}:
        assert longest[name] == (512 if contract.axes[name].maximum is None else contract.axes[name].maximum)


def test_thorough_has_every_shape_twice_with_other_values(contract: Contract) -> None:
    standard, thorough = make_plan(contract), make_plan(contract, level="thorough")
    shapes = [case.words for case in standard if case.group == "shapes"]
    more = thorough[len(standard) :]
    assert [case.words for case in more[: len(shapes)]] == shapes
    assert not any(same(a, b) for a, b in zip(standard, more, strict=False))


@pytest.mark.parametrize("level", LEVELS)
def test_small_cases_have_every_kind_of_mask_and_are_small(contract: Contract, level: str) -> None:
    plan = make_plan(contract, level=level)
    small = [case for case in plan if case.small]
    assert 6 <= len(small) < len(plan)
    for case in plan:
        lengths = sizes(contract, case)
        positions = lengths["batch"] * sum(size for name, size in lengths.items() if name != "batch")
        assert case.small == (positions <= 36)
    for spec in contract.inputs:
        if spec.role == "padding":
            arrays = [case.inputs[spec.name] for case in small]
            found = [array if array.dtype == bool else np.isneginf(array) for array in arrays]
            assert {kind_of(row) for mask in found for row in mask} >= {"none", "right", "left", "holes", "whole"}
    assert sum(case.group == "disturbed" for case in small) == len(contract.inputs)


def test_few_cases_have_every_way_of_masking_and_a_long_sentence(contract: Contract) -> None:
    plan = make_plan(contract)
    few = few_cases(plan)
    assert 4 <= len(few) <= 14
    lengths = [max(size for name, size in sizes(contract, case).items() if name != "batch") for case in few]
    assert max(lengths) >= min(LONG, *(axis.maximum or LONG for name, axis in contract.axes.items() if name != "batch"))
    assert all(case.small or sizes(contract, case)["batch"] == 1 for case in few)
    kinds = ("right", "left", "holes", "whole row", "everything")
    for kind in kinds if any(spec.role == "padding" for spec in contract.inputs) else ():
        assert any(f"padding {kind}" in case.words for case in few)
    assert few_cases(plan, 2) == few[:2]


# --- inputs that can be left out -------------------------------------------------------------------------------------


def test_optional_inputs_are_all_left_out_each_given_alone_and_all_given(flexible: Contract) -> None:
    masks = [spec.name for spec in flexible.inputs if spec.optional]
    always = [spec.name for spec in flexible.inputs if not spec.optional]
    cases = optional_cases(flexible, first=40)
    assert masks
    assert always
    given = [[name for name in case.inputs if name in masks] for case in cases]
    assert given == [[], *([name] for name in masks), masks]
    assert [case.name for case in cases] == [f"{40 + number}" for number in range(len(cases))]
    assert {(case.group, case.small) for case in cases} == {("optional", True)}
    assert len({case.words for case in cases}) == len(cases)
    for case in cases:
        assert [name for name in case.inputs if name in always] == always
        assert all(np.array_equal(array, cases[-1].inputs[name]) for name, array in case.inputs.items())


def test_each_optional_mask_hides_something_so_that_leaving_it_out_matters(flexible: Contract) -> None:
    whole = optional_cases(flexible)[-1]
    for spec in flexible.inputs:
        if spec.optional:
            mask = whole.inputs[spec.name]
            hidden = mask if mask.dtype == bool else np.isneginf(mask)
            assert hidden.any()
            assert not hidden.all()


def test_a_contract_without_optional_inputs_has_one_case_twice_over_at_most() -> None:
    cases = optional_cases(CONTRACTS["translation: full"])
    assert [list(case.inputs) for case in cases] == [list(cases[0].inputs)] * len(cases)


# --- the parts of a case ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 2), (4, 31)])
@pytest.mark.parametrize("seed", range(20))
def test_padding_leaves_a_real_position_in_each_row_unless_it_is_whole(shape: tuple[int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for kind in ("none", "right", "left", "holes"):
        assert not padding_mask(shape, kind, rng).all(1).any()
    assert padding_mask(shape, "whole row", rng).all(1).any()
    assert padding_mask(shape, "everything", rng).all()


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (3, 31), (6, 4, 9)])
@pytest.mark.parametrize("seed", range(20))
def test_only_the_mask_with_dead_rows_has_rows_that_may_attend_nowhere(shape: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for kind in ("none", "causal", "random", "asymmetric"):
        assert not attention_mask(shape, kind, rng).all(-1).any()
    assert attention_mask(shape, "dead rows", rng).all(-1).any(-1).all()


def test_the_causal_mask_hides_what_comes_later() -> None:
    expected = [[False, True, True], [False, False, True]]
    assert attention_mask((2, 3), "causal", np.random.default_rng(0)).tolist() == expected
    assert attention_mask((4, 2, 3), "causal", np.random.default_rng(0)).tolist() == [expected] * 4


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("limit", [2, 3, 224])
def test_disturbed_ids_are_other_ids_of_the_vocabulary(seed: int, limit: int) -> None:
    rng = np.random.default_rng(seed)
    spec = TensorSpec("src", "int64", (BATCH, SOURCE), role="ids", limit=limit)
    ids = fill(spec, {"batch": 3, "source": 9}, "none", "none", rng)
    other = disturb(spec, ids, rng)
    assert (other != ids).all()
    assert other.min() >= 0
    assert other.max() < limit


def test_a_disturbed_float_mask_opens_what_was_hidden_and_moves_the_rest() -> None:
    rng = np.random.default_rng(0)
    spec = TensorSpec("tgt_mask", "float32", (TARGET, TARGET), role="attention")
    mask = fill(spec, {"target": 9}, "none", "random", rng)
    other = disturb(spec, mask, rng)
    hidden = np.isneginf(mask)
    assert hidden.any()
    assert not hidden.all()
    assert (other[hidden] == 0).all()
    assert (other[~hidden] != mask[~hidden]).all()
    assert np.isfinite(other).all()


@pytest.mark.parametrize("name", ["translation: encoder", "bare: encoder", "bare: full"])
def test_long_sentences_alone_are_tried_at_every_level_of_optimisation(name: str) -> None:
    """Whichever of batch and length comes first."""
    contract = CONTRACTS[name]
    alone = [case for case in make_plan(contract) if case.core and not case.small]
    assert alone
    assert all(sizes(contract, case)["batch"] == 1 for case in alone)
