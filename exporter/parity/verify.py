"""Verification of a saved file: interface, structure, rounding, in each way that it can be run. No torch here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from ..cases.case import Array, Case
from ..contracts.contract import Contract
from ..memory import release_memory
from ..runtimes.run import Run
from ..runtimes.runtime import run_all
from .compare import EXACT, FACTOR, FAIL, NOISE_LIMIT, ROUNDED_LIMIT, Comparison, Expected, compare_case
from .judge import check_interface, judge
from .report import Finding, GraphReport

# The largest of five errors is sometimes small by luck: of 1.4 million honest comparisons 1 in 70,000 was more than
# four times that far off. So a few cases that are not far off have their noise measured once more, by more runs.
DOUBTFUL_CASES = 3
DOUBTFUL_RATIO = 4
# Where activations are rounded to 8 bits, a value between two integers may go to the other one, which no run of PyTorch
# did, and that is far off. It is rare: such a case is one of many.
DOUBTFUL_SHARE = 1 / 4

# Times what is allowed: no single run of PyTorch is so lucky that others are that much further off.
LUCK = 1000

# For the number of a case its reference, with the noise measured by more runs.
Measure = Callable[[int], Mapping[str, Expected]]
# For the numbers of cases the references of those whose noise had not been measured in full, and now is.
Settle = Callable[[Iterable[int]], Mapping[int, Mapping[str, Expected]]]
# Told how many cases are done, and of how many, in all ways together.
Told = Callable[[int, int], None]


def verify_file(
    path: Path,
    contract: Contract,
    plan: Sequence[Case],
    expected: Sequence[Mapping[str, Expected]],
    runs: Sequence[Run],
    *,
    format_name: str,
    found: Sequence[Finding] | None = None,
    measure: Measure | None = None,
    settle: Settle | None = None,
    told: Told = lambda done, total: None,
) -> list[GraphReport]:
    """Verify one file in each way of ``runs``.

    Args:
        path: the file.
        contract: what it should be.
        plan: the cases to run.
        expected: the reference for each case; it may be changed meanwhile by ``measure`` and ``settle``.
        runs: how to run it.
        format_name: for the report.
        found: what is wrong with the weights; it fails every report. None where nobody looked at them.
        measure: called for a case that fails by little.
        settle: called for cases that fail, before they do. None where all noise was measured in full.
        told: how far it is.
    """
    before: Sequence[Finding] = found or ()
    if len(plan) != len(expected):  # some of it would not be looked at
        missing = Finding("runtime", f"there are {len(plan)} cases, and references for {len(expected)}")
        before = [*before, missing]
        plan = plan[: len(expected)]
    looked_at = ("runtime", "interface") if found is None else ("weights", "runtime", "interface")
    asked = [sum(map(run.takes, plan)) for run in runs]
    reports: list[GraphReport] = []
    for run in runs:
        told(sum(asked[: len(reports)]), sum(asked))
        reports.append(
            _verify_run(path, contract, plan, expected, run, format_name, before, looked_at, measure, settle)
        )
    return reports


def _verify_run(
    path: Path,
    contract: Contract,
    plan: Sequence[Case],
    expected: Sequence[Mapping[str, Expected]],
    run: Run,
    format_name: str,
    found: Sequence[Finding],
    checked: Sequence[str],
    measure: Measure | None,
    settle: Settle | None,
) -> GraphReport:
    begun = time.perf_counter()
    contract = contract.lifted() if run.lifted else contract
    factor = EXACT if run.lifted else FACTOR
    compare = partial(compare_case, contract, factor=factor, limit=ROUNDED_LIMIT if run.rounds else NOISE_LIMIT)
    numbers = [number for number, case in enumerate(plan) if run.takes(case)]
    asked = [plan[number] for number in numbers]
    try:
        runtime = run.open(path)
        description = runtime.describe()
    except Exception as error:
        message = f"{run.runtime} cannot load {path.name}: {' '.join(str(error).split())}"
        found = [*found, Finding("runtime", message)]
        checked = [check for check in checked if check != "interface"]
        return judge(contract, run, asked, {}, found, format_name=format_name, checked=checked)
    findings = [*found, *check_interface(contract, description, dimensions=run.dimensions)]
    # Run everything first, then judge: one failure must not hide the next.
    results: dict[str, list[Comparison]] = {}
    kept: dict[int, Mapping[str, Array]] = {}  # what failed, to be compared again
    for number, outputs in zip(numbers, run_all(runtime, [case.inputs for case in asked]), strict=True):
        case = plan[number]
        if isinstance(outputs, Exception):
            message = f"case {case.name} ({case.words}): {' '.join(str(outputs).split())}"
            findings.append(Finding("runtime", message, case.name))
        else:
            results[case.name] = compare(outputs, expected[number])
            if any(comparison.verdict == FAIL for comparison in results[case.name]):
                kept[number] = outputs
    if settle is not None:
        luck = math.inf if run.rounds else LUCK * factor
        unlucky = [number for number in kept if _by_luck(results[plan[number].name], expected[number], luck)]
        for number, reference in settle(unlucky).items():
            results[plan[number].name] = compare(kept[number], reference)
    if measure is not None:
        doubtful = _doubtful(results, factor, rounds=run.rounds)
        for number in (number for number in kept if plan[number].name in doubtful):
            results[plan[number].name] = compare(kept[number], measure(number))
    kept.clear()
    del runtime
    release_memory(cycles=False)
    seconds = round(time.perf_counter() - begun, 3)
    return judge(contract, run, asked, results, findings, format_name=format_name, checked=checked, seconds=seconds)


def _by_luck(comparisons: Sequence[Comparison], expected: Mapping[str, Expected], luck: float) -> bool:
    """Whether a case may have failed as one run of PyTorch was lucky: the others may be further off, or ids may tie."""

    def possible(comparison: Comparison) -> bool:
        reference = expected.get(comparison.output)
        if comparison.verdict != FAIL or reference is None:
            return False
        if comparison.interface:  # where sentences tie, the longest may be another
            return reference.pad is not None
        return math.isfinite(comparison.max_abs_error) and (reference.exact or comparison.ratio <= luck)

    return any(map(possible, comparisons))


def _doubtful(results: Mapping[str, Sequence[Comparison]], factor: float, *, rounds: bool = False) -> set[str]:
    """The cases that failed, if they are few and none is far off: a real fault shows in more, or by more."""
    failed = [
        (name, comparison.ratio)
        for name, comparisons in results.items()
        for comparison in comparisons
        if comparison.verdict == FAIL
    ]
    names = {name for name, _ in failed}
    if rounds:
        return names if len(names) <= max(1, DOUBTFUL_SHARE * len(results)) else set()
    few = len(names) <= DOUBTFUL_CASES and all(ratio <= DOUBTFUL_RATIO * factor for _, ratio in failed)
    return names if few else set()
