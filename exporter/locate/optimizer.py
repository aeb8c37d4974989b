"""Which rewrite of onnxruntime's optimiser is to blame, where a file fails with it and not without. No torch here.

The optimiser has no list of what it did, but its log names the rewrites that changed the file. Left out one by one, and
then in groups, they show the fewest without which every case passes.
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
    """An output that is wrong in a case.

    Attributes:
        case: name and words; empty where the file cannot be loaded.
        output: its name; empty where the case gave none.
        ratio: the factor that would have passed; infinite where there is none.
        reason: what is wrong.
    """

    case: str
    output: str
    ratio: float
    reason: str


@dataclass(frozen=True)
class OptimizerFault:
    """What :func:`blame_optimizer` found.

    Attributes:
        level: the lowest at which a case fails. ``off``: it is not the optimiser that is to blame.
        tried_at: the highest at which one fails, where rewrites were left out.
        disabled_optimizers: the fewest rewrites without which all cases pass; empty where no rewrite could be named.
        instead: others of which each would do as well, if it is left out alone: they prepare what is then done wrong.
        candidates: the rewrites that change the file, as far as they can be left out.
        failures: what fails at ``tried_at``.
        cases: how many cases were run.
        worst_ratio: the largest of the failures.
        ratio_without: the largest without the rewrites; NaN where none was named.
        nodes: by type, how many nodes more, or fewer, the rewrites leave in the file.
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
        """How many cases failed: all, where the file cannot be loaded."""
        names = {failure.case for failure in self.failures}
        return self.cases if "" in names else len(names)

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON, which has no infinity: a number that is not finite becomes None."""
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
    """Find the rewrites of onnxruntime's optimiser that make the file at ``path`` fail; None where it never fails.

    Args:
        path: an ONNX file.
        contract: of the file.
        cases: small ones: they are run once for each rewrite, and oftener where several are to blame together.
        expected: the reference for each case.
        open_file: loads the file.
        rewritten: the rewrites that change the file.

    Raises:
        OptionError: where there are no cases.
    """
    if not cases:
        raise OptionError(f"there are no cases to run {path.name} on", "give at least one")
    trial = _Trial(path, contract, cases, expected, open_file)
    found = {level: trial.failures(level) for level in LEVELS}
    failing = [level for level, failures in found.items() if failures]
    if not failing:
        return None
    level = OFF if failing[0] == OFF else failing[-1]  # what passes there is what a user's session can be told
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
    """Runs the cases at a level, without some of the rewrites."""

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
        self.ratios: dict[frozenset[str], float] = {}  # the largest ratio, where all cases pass; NaN where not

    def begin(self, level: str, failed: Collection[str]) -> None:
        """Try at ``level`` from now on, the cases that failed first."""
        self.level = level
        self.pairs.sort(key=lambda pair: _words(pair[0]) not in failed)

    def failures(self, level: str) -> list[Failure]:
        """What fails at ``level``."""
        return [failure for failure in self._run(RuntimeOptions(level=level)) if isinstance(failure, Failure)]

    def passes_without(self, names: Sequence[str]) -> bool:
        """Whether all cases pass where those rewrites are left out."""
        return math.isfinite(self.ratio_without(names))

    def ratio_without(self, names: Sequence[str]) -> float:
        """The largest ratio where those rewrites are left out; NaN where a case fails."""
        key = frozenset(names)
        if key not in self.ratios:
            options = RuntimeOptions(level=self.level, disabled_optimizers=tuple(names))
            largest = 0.0
            for found in self._run(options):
                if isinstance(found, Failure):
                    largest = math.nan
                    break  # the others would change nothing
                largest = max(largest, found)
            self.ratios[key] = largest
        return self.ratios[key]

    def _run(self, options: RuntimeOptions) -> Iterator[Failure | float]:
        """For each output of each case what is wrong with it, or the ratio with which it passes."""
        try:
            runtime = self.open_file(self.path, options)
        except Exception as error:  # a graph that the optimiser has made invalid, say
            yield Failure("", "", math.inf, f"onnxruntime cannot load it: {first_line(error)}")
            return
        try:
            for case, expected in self.pairs:
                (outputs,) = run_all(runtime, [case.inputs])
                if isinstance(outputs, Exception):
                    yield Failure(_words(case), "", math.inf, first_line(outputs))
                    continue
                for found in compare_case(self.contract, outputs, expected):
                    failed = found.verdict == FAIL  # what is too noisy to judge is so at each level
                    yield Failure(_words(case), found.output, found.ratio, found.reason) if failed else found.ratio
        finally:
            del runtime
            release_memory(cycles=False)


def _words(case: Case) -> str:
    return f"{case.name} ({case.words})"


def _candidates(path: Path, level: str, rewritten: Rewritten) -> list[str]:
    """The rewrites that change the file at ``level``, and those that do so in their place; without any that must run.

    What one rewrite is kept from doing, another may do: so they are asked for until there is no new one.
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
    """The fewest of ``names`` that have to be left out, and others of which each would do as well.

    Where several do alone, the last to run is the one: those before it make what it then does wrong.
    """
    alone = [name for name in names if passes_without([name])]
    return (alone[-1:], alone[:-1]) if alone else (_smallest(list(names), passes_without), [])


def _smallest(names: list[str], passes_without: Callable[[Sequence[str]], bool]) -> list[str]:
    """A part of ``names`` of which none can be spared, by delta debugging (Zeller and Hildebrandt, 2002)."""
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
    """The same with single rules for those that run together, where that does as well."""
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
    """How many nodes of each type there are more with the rewrites than without."""
    with_them = node_types(path, RuntimeOptions(level=level))
    without = node_types(path, RuntimeOptions(level=level, disabled_optimizers=tuple(chosen)))
    if with_them is None or without is None:
        return {}
    with_them.subtract(without)
    return {name: count for name, count in sorted(with_them.items(), key=lambda item: -item[1]) if count}
