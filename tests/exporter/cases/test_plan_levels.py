"""Plans of each level, few and small cases, and cases in which optional inputs are left out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mytx.exporter import OptionError
from mytx.exporter.cases.plan import LEVELS, LONG, alike, few_cases, make_plan, optional_cases
from mytx.exporter.contracts.contract import Contract
from plans import CONTRACTS, kind_of, same, sizes

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
    assert sum(case.group == "disturbed" for case in small) == len(alike(contract.inputs))


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
