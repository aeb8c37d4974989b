"""The spread of errors: counted by powers of two, fast and complete."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from exported_models import Exported
from mytx.exporter.cases.identities import whole_plan
from mytx.exporter.parity.compare import FAIL, PASS, Expected, compare_values
from mytx.exporter.parity.search_reference import search_references
from mytx.exporter.parity.spread import HIGHEST, LOWEST, Spread, add_spreads, spread_of, tally
from mytx.exporter.parity.stored import read_stored, store, write_stored


def spread(*errors: float, unit: float = 1.0) -> Spread:
    return spread_of(tally(np.array(errors, dtype=np.float64)), unit)


def powers(found: Spread) -> dict[int, int]:
    return {number + LOWEST: count for number, count in enumerate(found) if count}


@pytest.mark.parametrize(
    ("error", "power"),
    [
        (1.0, 0),
        (1.99, 0),
        (2.0, 1),
        (0.5, -1),
        (4.0, 2),
        (3.99, 1),
        (0.0, LOWEST),
        (1e-300, LOWEST),
        (5e-324, LOWEST),
        (1e300, HIGHEST),
        (math.inf, HIGHEST),
        (math.nan, HIGHEST),
    ],
)
def test_an_error_is_counted_at_its_power_of_two(error: float, power: int) -> None:
    assert powers(spread(error)) == {power: 1}


@pytest.mark.parametrize("unit", [1e-9, 3.7e-7, 1.0, 1e5])
def test_counts_are_those_of_logarithms_to_a_sixteenth(unit: float) -> None:
    errors = np.abs(np.random.default_rng(0).standard_normal(10_000)) * unit
    found = spread_of(tally(errors.copy()), unit)
    exact = np.clip(np.floor(np.log2(errors / unit)), LOWEST, HIGHEST).astype(int) - LOWEST
    expected = np.bincount(exact, minlength=len(found))
    assert sum(found) == 10_000
    assert np.abs(np.cumsum(found) - np.cumsum(expected)).max() < 0.04 * 10_000


def test_where_nothing_is_allowed_any_error_is_of_the_largest_kind() -> None:
    assert powers(spread(0.0, 1e-30, 5.0, unit=0.0)) == {LOWEST: 1, HIGHEST: 2}


def test_nothing_gives_counts_of_0_and_sums_add_up() -> None:
    assert sum(spread()) == 0
    assert powers(add_spreads([spread(1.0), spread(1.0, 4.0)])) == {0: 2, 2: 1}
    assert add_spreads([]) == ()


def test_an_array_in_another_order_or_with_more_dimensions_is_counted_too() -> None:
    errors = np.asfortranarray(np.arange(24.0).reshape(2, 3, 4))
    assert powers(spread_of(tally(errors), 8.0)) == {LOWEST: 1, -3: 1, -2: 2, -1: 4, 0: 8, 1: 8}


def test_a_comparison_counts_every_element_in_units_of_what_is_allowed_once() -> None:
    reference = np.zeros(100)
    reference[0] = 1.0
    actual = reference.astype(np.float32)
    actual[1:6] = 1e-6
    result = compare_values("y", actual, Expected(reference, noise=1e-6, spread=(1,)))
    assert result.verdict == PASS
    assert powers(result.spread) == {LOWEST: 95, -1: 5}
    assert result.own_spread == (1,)
    assert result.allowed == pytest.approx(4 * (1e-6 + np.finfo(np.float32).eps))


def test_ids_and_what_has_no_numbers_have_no_spread() -> None:
    ids = Expected(np.array([1.0, 2.0]), 0.0, exact=True)
    assert compare_values("y", np.array([1, 2]), ids).spread == ()
    assert compare_values("y", np.array([1, 3]), ids).verdict == FAIL
    broken = compare_values("y", np.array([np.nan, 0], dtype=np.float32), Expected(np.zeros(2), 1e-7))
    assert broken.spread == ()


# --- the reference ---------------------------------------------------------------------------------------------------


def test_pytorchs_own_errors_are_counted_and_the_largest_is_not_beyond_the_noise(translation: Exported) -> None:
    plan, expected = translation.plan("full"), translation.expected("full")
    for case, outputs in zip(plan, expected, strict=True):
        for output in outputs.values():
            if case.same_as is not None:
                assert output.spread == ()  # it is held against parts of another case
                continue
            assert sum(output.spread) == output.values.size
            assert max(powers(output.spread)) <= 0


def test_of_a_search_the_scores_have_a_spread_and_the_ids_have_none(translation: Exported) -> None:
    graph = translation.every["greedy"]
    plan = whole_plan(graph.contract, "quick")[:3]
    for outputs in search_references(translation.model, graph, plan):
        assert outputs["tokens"].spread == outputs["lengths"].spread == ()
        assert sum(outputs["scores"].spread) <= outputs["scores"].values.size


def test_the_spread_is_stored_and_cases_that_were_stored_without_are_still_read(
    translation: Exported, tmp_path: Path
) -> None:
    plan, expected = translation.plan("encoder"), translation.expected("encoder")
    path = tmp_path / "reference.npz"
    for wanted in (expected, [{name: replace(found, spread=()) for name, found in case.items()} for case in expected]):
        write_stored(path, {"encoder": store(plan, wanted)})
        read = read_stored(path)["encoder"].expected
        assert [{name: item.spread for name, item in case.items()} for case in read] == [
            {name: item.spread for name, item in case.items()} for case in wanted
        ]


def test_a_report_sums_both_and_leaves_out_cases_in_which_pytorchs_is_not_known(translation: Exported) -> None:
    report = translation.verify("encoder")[0]
    measured = [outputs["memory"] for outputs in translation.expected("encoder") if outputs["memory"].spread]
    assert report.passed
    assert sum(report.spread) == sum(report.own_spread) == sum(output.values.size for output in measured)
    assert len(report.details) == report.cases > len(measured)
