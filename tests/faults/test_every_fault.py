"""The standard plan finds every planted fault, with the expected checks and at the right place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from catalogue import FAULTS
from examine import Verdict
from fault import Fault
from subject import COUNTS

# What finds a fault that is too small for outputs to tell.
NOT_BY_ROUNDING = {"weights", "structure", "interface", "runtime"}
VerdictOn = Callable[[Fault], Verdict]

each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)


@each_fault
def test_a_planted_fault_is_found_by_the_checks_that_should_find_it(fault: Fault, verdict_on: VerdictOn) -> None:
    verdict = verdict_on(fault)
    assert verdict.caught
    assert verdict.checks == tuple(sorted(fault.checks))
    assert any(fault.words in message for message in verdict.messages)


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.kind != "plan"], ids=lambda fault: fault.name)
def test_a_fault_is_as_large_as_the_catalogue_says_and_a_small_one_is_not_left_to_the_outputs(
    fault: Fault, verdict_on: VerdictOn
) -> None:
    verdict = verdict_on(fault)
    assert verdict.moved is not None
    assert (verdict.moved <= COUNTS) == fault.small
    assert not fault.small or NOT_BY_ROUNDING & set(verdict.checks)


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.place is not None], ids=lambda fault: fault.name)
def test_the_place_of_a_fault_is_named(fault: Fault, verdict_on: VerdictOn) -> None:
    assert verdict_on(fault).named


def test_the_catalogue_has_many_faults_of_every_kind_and_none_twice() -> None:
    kinds = Counter(fault.kind for fault in FAULTS)
    assert len(FAULTS) >= 270
    assert all(count >= 2 for count in kinds.values())
    assert len(kinds) == 21
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert sum(fault.small for fault in FAULTS) >= 20
    assert sum(fault.place is not None for fault in FAULTS) >= 40
