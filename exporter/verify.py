"""Verification of a saved file: interface, structure, rounding, in each way that it can be run. No torch here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from .compare import EXACT, FACTOR, FAIL, Comparison, Expected, compare_case
from .contract import Contract
from .formats import Format
from .judging import check_interface, judge
from .memory import release_memory
from .plan import Array, Case
from .report import Finding, GraphReport
from .runtimes import Composed, Runtime, Stepped, run_all

# The largest of five errors is sometimes small by luck: of 1.4 million honest comparisons 1 in 70,000 was more than
# four times that far off. So a few cases that are not far off have their noise measured once more, by more runs.
DOUBTFUL_CASES = 3
DOUBTFUL_RATIO = 4

# Times what is allowed: no single run of PyTorch is so lucky that others are that much further off.
LUCK = 1000

# For the number of a case its reference, with the noise measured by more runs.
Measure = Callable[[int], Mapping[str, Expected]]
# For the numbers of cases the references of those whose noise had not been measured in full, and now is.
Settle = Callable[[Iterable[int]], Mapping[int, Mapping[str, Expected]]]
# Told how many cases are done, and of how many, in all ways together.
Told = Callable[[int, int], None]


@dataclass(frozen=True)
class Run:
    """One way to run a file.

    Attributes:
        runtime: its name in the report.
        open: loads the file.
        takes: whether it is asked for a case.
        lifted: the file is run in float64, where nothing rounds: the check of structure.
        dimensions: whether the runtime knows the names of dimensions.
    """

    runtime: str
    open: Callable[[Path], Runtime]
    takes: Callable[[Case], bool] = lambda case: True
    lifted: bool = False
    dimensions: bool = True


def small(case: Case) -> bool:
    """Whether a slow runtime is asked for a case."""
    return case.small


def core(case: Case) -> bool:
    """Whether a file is asked for a case in every way that it is run."""
    return case.core


def small_core(case: Case) -> bool:
    """Whether a slow runtime is asked for a case in which it only has to agree."""
    return case.small and case.core


def runs_of(
    known: Format, contract: Contract, present: Collection[str], folder: Path, verbose: bool = False
) -> list[Run]:
    """The ways to run a file in a format; full also by way of encoder and decoder.

    Args:
        known: the format.
        contract: of the file.
        present: the graphs that have a file in the format.
        folder: where the files are.
        verbose: let the runtime's own messages through.
    """
    runs = [_without(run, left_out(known)) for run in known.load_checker().runs(verbose)]
    if contract.searches:  # node by node a search takes long
        runs = [replace(run, takes=small_core) if run.lifted else run for run in runs]
    if contract.composed:
        runs += composed_runs(runs[0], lambda name: runs[0].open(folder / known.file(name)), contract, present)
    return runs


def left_out(known: Format) -> set[str]:
    """The groups of cases that a file of a format is not asked for."""
    # What can leave out an input is a function of PyTorch, and refuses numbers that are out of range.
    return {"steps", "range"} if known.flexible else {"steps", "optional"}


def composed_runs(
    first: Run, open_graph: Callable[[str], Runtime], contract: Contract, present: Collection[str]
) -> list[Run]:
    """The other ways to the full graph: by the encoder and the decoder, and by cached steps.

    Args:
        first: how the full graph itself is run. Of the cases that it takes these are asked for the core.
        open_graph: loads another graph.
        contract: of the full graph.
        present: the graphs that there are.
    """
    found = []
    if {"encoder", "decoder"} <= set(present):
        name = f"{first.runtime}, decoder(encoder)"
        halves = partial(_open_both, Composed, ("encoder", "decoder"), open_graph, contract)
        found.append(Run(name, halves, lambda case: _joined(case) and first.takes(case), dimensions=False))
    if {"prefill", "step"} <= set(present):
        steps = partial(_open_both, Stepped, ("prefill", "step"), open_graph, contract)
        found.append(
            Run(
                f"{first.runtime}, N cached steps",
                steps,
                lambda case: case.core and unpadded_target(case) and first.takes(replace(case, group="shapes")),
                dimensions=False,
            )
        )
    return found


def _joined(case: Case) -> bool:
    """Whether the full graph is run by way of its halves: each shape and mask once."""
    return case.core and case.group != "steps"


def _open_both(
    kind: type[Composed] | type[Stepped],
    names: tuple[str, str],
    open_graph: Callable[[str], Runtime],
    contract: Contract,
    _: Path,
) -> Runtime:
    first, second = map(open_graph, names)
    return kind(first, second, contract)


def unpadded_target(case: Case) -> bool:
    """Whether the target of a case has no padding: a cached step knows none. The cases of ``steps`` are made so."""
    return case.group in ("shapes", "steps") and not case.inputs["tgt_key_padding_mask"].any()


def _without(run: Run, groups: Collection[str]) -> Run:
    """``run``, not asked for cases of ``groups``."""
    return replace(run, takes=lambda case: case.group not in groups and run.takes(case))


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
            results[case.name] = compare_case(contract, outputs, expected[number], factor)
            if any(comparison.verdict == FAIL for comparison in results[case.name]):
                kept[number] = outputs
    if settle is not None:
        unlucky = [number for number in kept if _by_luck(results[plan[number].name], expected[number], factor)]
        for number, reference in settle(unlucky).items():
            results[plan[number].name] = compare_case(contract, kept[number], reference, factor)
    if measure is not None:
        doubtful = _doubtful(results, factor)
        for number in (number for number in kept if plan[number].name in doubtful):
            results[plan[number].name] = compare_case(contract, kept[number], measure(number), factor)
    kept.clear()
    del runtime
    release_memory(cycles=False)
    seconds = round(time.perf_counter() - begun, 3)
    return judge(contract, run, asked, results, findings, format_name=format_name, checked=checked, seconds=seconds)


def _by_luck(comparisons: Sequence[Comparison], expected: Mapping[str, Expected], factor: float) -> bool:
    """Whether a case may have failed as one run of PyTorch was lucky: the others may be further off, or ids may tie."""

    def possible(comparison: Comparison) -> bool:
        reference = expected.get(comparison.output)
        if comparison.verdict != FAIL or reference is None:
            return False
        if comparison.interface:  # where sentences tie, the longest may be another
            return reference.pad is not None
        return math.isfinite(comparison.max_abs_error) and (reference.exact or comparison.ratio <= LUCK * factor)

    return any(map(possible, comparisons))


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
