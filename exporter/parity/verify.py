"""Verification of a saved file: interface, structure, rounding, in each way that it can be run. No torch here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..cases.case import Case
from ..contracts.contract import Contract
from ..memory import release_memory
from ..runtimes.run import Run
from ..runtimes.runtime import run_all
from .compare import EXACT, FACTOR, FAIL, Comparison, Expected, compare_case
from .judge import check_interface, judge
from .report import Finding, GraphReport

# The largest of five errors is sometimes small by luck: of 1.4 million honest comparisons 1 in 70,000 was more than
# four times that far off. So a few cases that are not far off have their noise measured once more, by more runs.
DOUBTFUL_CASES = 3
DOUBTFUL_RATIO = 4

# For the number of a case its reference, with the noise measured by more runs.
Measure = Callable[[int], Mapping[str, Expected]]


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
) -> list[GraphReport]:
    """Verify one file in each way of ``runs``.

    Args:
        path: the file.
        contract: what it should be.
        plan: the cases to run.
        expected: the reference for each case; it may be changed meanwhile by ``measure``.
        runs: how to run it.
        format_name: for the report.
        found: what is wrong with the weights; it fails every report. None where nobody looked at them.
        measure: called for a case that fails by little.
    """
    before: Sequence[Finding] = found or ()
    if len(plan) != len(expected):  # some of it would not be looked at
        missing = Finding("runtime", f"there are {len(plan)} cases, and references for {len(expected)}")
        before = [*before, missing]
        plan = plan[: len(expected)]
    looked_at = ("runtime", "interface") if found is None else ("weights", "runtime", "interface")
    return [_verify_run(path, contract, plan, expected, run, format_name, before, looked_at, measure) for run in runs]


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
) -> GraphReport:
    begun = time.perf_counter()
    contract = contract.lifted() if run.lifted else contract
    factor = EXACT if run.lifted else FACTOR
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
    for number, outputs in zip(numbers, run_all(runtime, [case.inputs for case in asked]), strict=True):
        case = plan[number]
        if isinstance(outputs, Exception):
            message = f"case {case.name} ({case.words}): {' '.join(str(outputs).split())}"
            findings.append(Finding("runtime", message, case.name))
        else:
            results[case.name] = compare_case(contract, outputs, expected[number], factor)
    if measure is not None:
        again = [number for number in numbers if plan[number].name in _doubtful(results, factor)]
        outcomes = run_all(runtime, [plan[number].inputs for number in again])
        for number, outputs in zip(again, outcomes, strict=True):
            if not isinstance(outputs, Exception):
                results[plan[number].name] = compare_case(contract, outputs, measure(number), factor)
    del runtime
    release_memory(cycles=False)
    seconds = round(time.perf_counter() - begun, 3)
    return judge(contract, run, asked, results, findings, format_name=format_name, checked=checked, seconds=seconds)


def _doubtful(results: Mapping[str, Sequence[Comparison]], factor: float) -> set[str]:
    """The cases that failed, if they are few and none is far off: a real fault shows in more, or by more."""
    failed = [
        (name, comparison.ratio)
        for name, comparisons in results.items()
        for comparison in comparisons
        if comparison.verdict == FAIL
    ]
    names = {name for name, _ in failed}
    few = len(names) <= DOUBTFUL_CASES and all(ratio <= DOUBTFUL_RATIO * factor for _, ratio in failed)
    return names if few else set()
