"""The geometry of the plots in ``parity.html``: marks, bars and ticks. The template draws them. No torch here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from ..parity.compare import FACTOR
from ..parity.report import CaseReport
from ..parity.spread import HIGHEST, LOWEST
from .summary import shown

WIDTH, HEIGHT = 560, 250  # size of a plot, in SVG units
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 14, 36  # margins for labels, in SVG units
LEAST_COLUMNS = 2.4  # smallest width of a group of cases, in columns: room for its label
DECADES = 12  # most decades of an axis
NO_LENGTHS = ("batch", "beams", "hypotheses")  # axes that are not lengths of a sequence


@dataclass(frozen=True)
class RunCase:
    """A case in the worst run of a file, and the name of that run."""

    case: CaseReport
    runtime: str


@dataclass(frozen=True)
class Mark:
    """The mark of one case: its position, whether it passed, and the words of its tooltip."""

    x: float
    y: float
    passed: bool
    words: str


@dataclass(frozen=True)
class Tick:
    """A label on an axis and its position; ``end`` is the end of the part of the axis that it names."""

    at: float
    text: str
    end: float = 0.0


@dataclass(frozen=True)
class Plot:
    """The errors of all cases, on a logarithmic scale.

    Attributes:
        title: heading of the plot.
        axis: title of the horizontal axis.
        marks: the file's error in each case.
        own, allowed: PyTorch's own error and the allowed error in the same cases, as SVG paths.
        rows, columns: ticks of the vertical and of the horizontal axis.
    """

    title: str
    axis: str
    marks: tuple[Mark, ...]
    own: str
    allowed: str
    rows: tuple[Tick, ...]
    columns: tuple[Tick, ...]


@dataclass(frozen=True)
class Bar:
    """A bar of the histogram, with the words of its tooltip."""

    x: float
    y: float
    width: float
    height: float
    words: str


@dataclass(frozen=True)
class Histogram:
    """The sizes of all errors, as ratios.

    Attributes:
        bars, own: bars of the file's errors, and of PyTorch's own.
        limit: horizontal position of the limit.
        rows, columns: ticks of the vertical and of the horizontal axis.
    """

    bars: tuple[Bar, ...]
    own: tuple[Bar, ...]
    limit: float
    rows: tuple[Tick, ...]
    columns: tuple[Tick, ...]


def length_of(case: CaseReport) -> int:
    """The length of the longest sequence in a case."""
    return max((size for axis, size in case.sizes.items() if axis not in NO_LENGTHS), default=0)


def batch_of(case: CaseReport) -> int:
    """The number of sentences in a case."""
    return case.sizes.get("batch", 1)


def plots_of(cases: Sequence[RunCase]) -> list[Plot]:
    """Two plots of the errors of ``cases``: against the sequence length and against the batch size."""
    names = [axis for axis in dict.fromkeys(axis for run in cases for axis in run.case.sizes) if axis not in NO_LENGTHS]
    lengths = f"length: the longest of {', '.join(names)}" if len(names) > 1 else f"length of the {''.join(names)}"
    return [
        _plot(cases, "Error against length", lengths, length_of),
        _plot(cases, "Error against batch", "sentences in the batch", batch_of),
    ]


def _plot(cases: Sequence[RunCase], title: str, axis: str, key: Callable[[CaseReport], int]) -> Plot:
    """One column for each case, so that no mark hides another. Cases of the same size stand together."""
    ordered = sorted(cases, key=lambda run: (key(run.case), run.case.name))
    groups = [(size, list(found)) for size, found in groupby(ordered, key=lambda run: key(run.case))]
    scale = _scale([number for run in cases for number in (run.case.max_abs_error, run.case.noise, run.case.allowed)])
    column = (WIDTH - LEFT - RIGHT) / max(1.0, sum(max(LEAST_COLUMNS, len(found)) for _, found in groups))
    marks, ticks, own, allowed = [], [], [], []
    left = float(LEFT)
    for size, found in groups:
        width = column * max(LEAST_COLUMNS, len(found))
        step = width / len(found)
        for number, run in enumerate(found):
            x = round(left + (number + 0.5) * step, 1)
            marks.append(Mark(x, scale.y(run.case.max_abs_error), run.case.passed, _words(run)))
            if run.case.noise is not None:
                own.append(f"M{x:g} {scale.y(run.case.noise) - 3:g}l3 3-3 3-3-3z")
            if run.case.allowed is not None:
                half = min(step, column * 1.2) / 2
                allowed.append(f"M{x - half:.1f} {scale.y(run.case.allowed):g}h{2 * half:.1f}")
        ticks.append(Tick(round(left + width / 2, 1), str(size), round(left + width, 1)))
        left += width
    return Plot(title, axis, tuple(marks), "".join(own), "".join(allowed), scale.ticks, tuple(ticks))


def _words(run: RunCase) -> str:
    case = run.case
    numbers = f"error {shown(case.max_abs_error)}"
    if case.noise is not None and case.allowed is not None:
        numbers += f", PyTorch {shown(case.noise)}, allowed {shown(case.allowed)}"
    verdict = "" if case.passed else f"{case.verdict.upper()}: "
    return f"{verdict}case {case.name}: {case.words}\n{numbers}; {run.runtime}"


@dataclass(frozen=True)
class _Scale:
    """A logarithmic axis from ``10**low`` to ``10**high``, with places for 0 below it and for infinity above it."""

    low: int
    high: int
    zero: bool

    def y(self, number: float) -> float:
        if not math.isfinite(number):
            return TOP + 4
        floor, ceiling = HEIGHT - BOTTOM - 14, TOP + 14
        if number <= 0:
            return HEIGHT - BOTTOM - 4
        share = (math.log10(number) - self.low) / (self.high - self.low)
        return round(floor - min(1.0, max(0.0, share)) * (floor - ceiling), 1)

    @property
    def ticks(self) -> tuple[Tick, ...]:
        step = 1 if self.high - self.low <= 6 else 2
        found = [Tick(self.y(10.0**power), f"1e{power}") for power in range(self.low, self.high + 1, step)]
        return (*found, Tick(self.y(0.0), "0")) if self.zero else tuple(found)


def _scale(numbers: Sequence[float | None]) -> _Scale:
    zero = 0.0 in numbers
    logs = [math.log10(number) for number in numbers if number is not None and 0 < number < math.inf]
    if not logs:
        return _Scale(-8, -4, zero)
    high = math.ceil(max(logs))
    return _Scale(max(min(math.floor(min(logs)), high - 1), high - DECADES), high, zero)


def histogram_of(spread: Sequence[int], own: Sequence[int]) -> Histogram | None:
    """The sizes of a file's errors beside PyTorch's own; None if nothing was counted."""
    if not sum(spread):
        return None
    slot = (WIDTH - LEFT - RIGHT) / (HIGHEST - LOWEST + 1)
    most = max(count / sum(counts) for counts in (spread, own) if sum(counts) for count in counts)
    step = next(step for step in (0.05, 0.1, 0.25, 0.5) if step >= most / 4 or step == 0.5)
    top = step * math.ceil(most / step)
    whole = HEIGHT - TOP - BOTTOM

    def bars(counts: Sequence[int], offset: float, of_what: str) -> tuple[Bar, ...]:
        found = []
        for number, count in enumerate(counts):
            if count:
                share = count / sum(counts)
                height = max(1.0, share / top * whole)
                x, y = LEFT + (number + offset) * slot, HEIGHT - BOTTOM - height
                words = f"{of_what}: {count:,} of {sum(counts):,} ({100 * share:.3g} %) are {_range(number + LOWEST)}"
                found.append(Bar(round(x, 1), round(y, 1), round(slot * 0.4, 1), round(height, 1), words))
        return tuple(found)

    rows = [
        Tick(HEIGHT - BOTTOM - i * step / top * whole, f"{100 * i * step:g} %") for i in range(round(top / step) + 1)
    ]
    columns = [
        Tick(round(LEFT + (power - LOWEST) * slot, 1), _power(power)) for power in range(LOWEST + 2, HIGHEST + 1, 2)
    ]
    limit = LEFT + (math.log2(FACTOR) - LOWEST) * slot
    return Histogram(bars(spread, 0.08, "file"), bars(own, 0.52, "PyTorch"), limit, tuple(rows), tuple(columns))


def _power(power: int) -> str:
    return str(2**power) if power >= 0 else f"1/{2**-power}"


def _range(power: int) -> str:
    if power == LOWEST:
        return f"below {_power(power + 1)}"
    return f"{_power(power)} or more" if power == HIGHEST else f"from {_power(power)} to {_power(power + 1)}"
