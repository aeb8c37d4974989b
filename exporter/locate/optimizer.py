"""Finding the rewrite of onnxruntime's optimiser with which a file fails, and without which it passes. No torch here.

The optimiser gives no list of its rewrites, but its log names those that changed the file. They are disabled one by
one, and then in groups, until the smallest set is found without which every case passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..cases.case import Case
from ..contracts.contract import Contract
from ..errors import OptionError, first_line
from ..memory import release_memory
from ..parity.compare import FAIL, Expected, compare_case
from ..runtimes.onnxruntime import LEVELS, OnnxRuntime, RuntimeOptions
from ..runtimes.runtime import Runtime, run_all
from .rewrites import RULES, TOGETHER, node_types, rewrites

Open = Callable[[Path, RuntimeOptions], Runtime]
Rewritten = Callable[[Path, RuntimeOptions], Sequence[str]]
OFF = "off"


@dataclass(frozen=True)
class Failure:
    """An output that is wrong in one case.

    Attributes:
        case: name and words of the case; empty if the file cannot be loaded.
        output: name of the output; empty if the case gave none.
        ratio: factor with which the comparison would have passed; infinite if there is none.
        reason: what is wrong.
    """

    case: str
    output: str
    ratio: float
    reason: str


@dataclass(frozen=True)
class OptimizerFault:
    """The result of :func:`blame_optimizer`.

    Attributes:
        level: lowest level of optimisation at which a case fails. ``off``: the optimiser is not the cause.
        tried_at: highest level at which a case fails; rewrites were disabled at this level.
        disabled_optimizers: smallest set of rewrites without which all cases pass; empty if no rewrite is the cause.
        instead: other rewrites that can be disabled instead, each alone: they prepare the wrong rewrite.
        candidates: the rewrites that change the file and can be disabled.
        failures: what fails at ``tried_at``.
        cases: number of cases that ran.
        worst_ratio: largest ratio of the failures.
        ratio_without: largest ratio with the rewrites disabled; NaN if none was named.
        nodes: difference in the number of nodes that the rewrites make, by type of node.
    """

    level: str
    tried_at: str
    disabled_optimizers: tuple[str, ...]
    instead: tuple[str, ...]
    candidates: tuple[str, ...]
    failures: tuple[Failure, ...]
    cases: int
    worst_ratio: float
    ratio_without: float = math.nan
    nodes: Mapping[str, int] = field(default_factory=dict)

    @property
    def failed_cases(self) -> int:
        """The number of cases that failed: all, if the file cannot be loaded."""
        names = {failure.case for failure in self.failures}
        return self.cases if "" in names else len(names)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON. JSON has no infinity: a number that is not finite becomes None."""
        values = asdict(self) | {"failures": [asdict(failure) for failure in self.failures]}
        for holder in (values, *values["failures"]):
            for name in {"ratio", "worst_ratio", "ratio_without"} & set(holder):
                holder[name] = holder[name] if math.isfinite(holder[name]) else None
        return values


def blame_optimizer(
    path: Path,
    contract: Contract,
    cases: Sequence[Case],
    expected: Sequence[Mapping[str, Expected]],
    *,
    open_file: Open = OnnxRuntime.open,
    rewritten: Rewritten = rewrites,
) -> OptimizerFault | None:
    """Find the rewrites of onnxruntime's optimiser that make the file at ``path`` fail; None if no case fails.

    Args:
        path: an ONNX file.
        contract: contract of the file.
        cases: small cases. They run once for each rewrite, and more often if several rewrites together are the cause.
        expected: reference of each case.
        open_file: loads the file with given options.
        rewritten: returns the rewrites that change the file.

    Raises:
        OptionError: if there are no cases.
    """
    if not cases:
        raise OptionError(f"there are no cases to run {path.name} on", "give at least one")
    trial = _Trial(path, contract, cases, expected, open_file)
    found = {level: trial.failures(level) for level in LEVELS}
    failing = [level for level, failures in found.items() if failures]
    if not failing:
        return None
    level = OFF if failing[0] == OFF else failing[-1]  # the advice must help at the highest level, the default
    failures = tuple(found[level])
    candidates: list[str] = []
    chosen: list[str] = []
    instead: list[str] = []
    if level != OFF:
        trial.begin(level, {failure.case for failure in failures})
        candidates = _candidates(path, level, rewritten)
        if trial.passes_without(candidates):
            chosen, instead = _fewest(candidates, trial.passes_without)
            chosen, instead = _single_rules(chosen, instead, trial.passes_without)
    return OptimizerFault(
        level=failing[0],
        tried_at=level,
        disabled_optimizers=tuple(chosen),
        instead=tuple(instead),
        candidates=tuple(candidates),
        failures=failures,
        cases=len(cases),
        worst_ratio=max(failure.ratio for failure in failures),
        ratio_without=trial.ratio_without(chosen) if chosen else math.nan,
        nodes=_difference(path, level, chosen) if chosen else {},
    )


class _Trial:
    """Runs the cases at one level of optimisation, with some of the rewrites disabled."""

    def __init__(
        self,
        path: Path,
        contract: Contract,
        cases: Sequence[Case],
        expected: Sequence[Mapping[str, Expected]],
        open_file: Open,
    ) -> None:
        self.path = path
        self.contract = contract
        self.pairs = list(zip(cases, expected, strict=True))
        self.open_file = open_file
        self.level = OFF
        self.ratios: dict[frozenset[str], float] = {}  # largest ratio if all cases pass, otherwise NaN

    def begin(self, level: str, failed: Collection[str]) -> None:
        """Use ``level`` from now on, and run the cases in ``failed`` before the others."""
        self.level = level
        self.pairs.sort(key=lambda pair: _words(pair[0]) not in failed)

    def failures(self, level: str) -> list[Failure]:
        """The failures at ``level``."""
        return [failure for failure in self._run(RuntimeOptions(level=level)) if isinstance(failure, Failure)]

    def passes_without(self, names: Sequence[str]) -> bool:
        """Whether all cases pass with these rewrites disabled."""
        return math.isfinite(self.ratio_without(names))

    def ratio_without(self, names: Sequence[str]) -> float:
        """The largest ratio with these rewrites disabled; NaN if a case fails."""
        key = frozenset(names)
        if key not in self.ratios:
            options = RuntimeOptions(level=self.level, disabled_optimizers=tuple(names))
            largest = 0.0
            for found in self._run(options):
                if isinstance(found, Failure):
                    largest = math.nan
                    break  # one failure decides
                largest = max(largest, found)
            self.ratios[key] = largest
        return self.ratios[key]

    def _run(self, options: RuntimeOptions) -> Iterator[Failure | float]:
        """Yields for each output of each case its failure, or the ratio with which it passes."""
        try:
            runtime = self.open_file(self.path, options)
        except Exception as error:  # the optimiser may have made the graph invalid
            yield Failure("", "", math.inf, f"onnxruntime cannot load it: {first_line(error)}")
            return
        try:
            for case, expected in self.pairs:
                (outputs,) = run_all(runtime, [case.inputs])
                if isinstance(outputs, Exception):
                    yield Failure(_words(case), "", math.inf, first_line(outputs))
                    continue
                for found in compare_case(self.contract, outputs, expected):
                    failed = found.verdict == FAIL  # a case that is too noisy to judge is so at every level
                    yield Failure(_words(case), found.output, found.ratio, found.reason) if failed else found.ratio
        finally:
            del runtime
            release_memory(cycles=False)


def _words(case: Case) -> str:
    return f"{case.name} ({case.words})"


def _candidates(path: Path, level: str, rewritten: Rewritten) -> list[str]:
    """The rewrites that change the file at ``level``, and those that replace them; without any that cannot be disabled.

    If a rewrite is disabled, another one may do the same. So the search repeats until it finds no new rewrite.
    """
    found: dict[str, None] = {}
    required: set[str] = set()
    while True:
        changed = rewritten(path, RuntimeOptions(level=level, disabled_optimizers=tuple(found)))
        required |= set(changed) & set(found)
        if set(changed) <= set(found):
            return [name for name in found if name not in required]
        found.update(dict.fromkeys(changed))


def _fewest(names: Sequence[str], passes_without: Callable[[Sequence[str]], bool]) -> tuple[list[str], list[str]]:
    """The smallest set of ``names`` to disable, and others that can be disabled instead, each alone.

    If several can be disabled alone, the last one to run is chosen: those before it only prepare its error.
    """
    alone = [name for name in names if passes_without([name])]
    return (alone[-1:], alone[:-1]) if alone else (_smallest(list(names), passes_without), [])


def _smallest(names: list[str], passes_without: Callable[[Sequence[str]], bool]) -> list[str]:
    """A subset of ``names`` from which none can be removed, by delta debugging (Zeller and Hildebrandt, 2002)."""
    parts = 2
    while len(names) > 1:
        size = math.ceil(len(names) / parts)
        chunks = [names[start : start + size] for start in range(0, len(names), size)]
        rests = [[name for name in names if name not in chunk] for chunk in chunks]
        smaller = next((some for some in (*chunks, *rests) if len(some) < len(names) and passes_without(some)), None)
        if smaller is not None:
            parts = 2 if smaller in chunks else max(2, parts - 1)
            names = smaller
        elif parts >= len(names):
            break
        else:
            parts = min(len(names), 2 * parts)
    return names


def _single_rules(
    chosen: list[str], instead: list[str], passes_without: Callable[[Sequence[str]], bool]
) -> tuple[list[str], list[str]]:
    """``chosen`` and ``instead`` with single rules in place of a group of rules, if disabling these is enough."""
    for name in chosen:
        rest = [other for other in chosen if other != name]
        passes_beside = partial(_passes_beside, rest, passes_without)
        if TOGETHER.fullmatch(name) and passes_beside(RULES):
            rules, others = _fewest(RULES, passes_beside)
            chosen, instead = [*rest, *rules], [*instead, *([] if rest else others)]
    return chosen, instead


def _passes_beside(rest: list[str], passes_without: Callable[[Sequence[str]], bool], some: Sequence[str]) -> bool:
    return passes_without([*rest, *some])


def _difference(path: Path, level: str, chosen: Sequence[str]) -> dict[str, int]:
    """The difference in the number of nodes between the file with and without the rewrites, by type of node."""
    with_them = node_types(path, RuntimeOptions(level=level))
    without = node_types(path, RuntimeOptions(level=level, disabled_optimizers=tuple(chosen)))
    if with_them is None or without is None:
        return {}
    with_them.subtract(without)
    return {name: count for name, count in sorted(with_them.items(), key=lambda item: -item[1]) if count}
