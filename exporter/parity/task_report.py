"""What another precision does to the task: frozen dataclasses for the report. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

Z = 1.959964  # standard deviations of a normal distribution that hold 95 %


@dataclass(frozen=True)
class Measure:
    """A measure of quality, in float32 and in the other precision, on the same sentences.

    Attributes:
        name: ``word error rate``, ``character error rate``, ``chrF`` or ``BLEU``; in percent, all of them.
        float32, other: the measure in either precision.
        float32_reach, other_reach: half of the 95 % interval of each, by resampling sentences.
    """

    name: str
    float32: float
    float32_reach: float
    other: float
    other_reach: float

    @property
    def words(self) -> str:
        """The measure in both precisions."""
        both = (
            f"{value:.1f} \u00b1 {reach:.1f}"
            for value, reach in ((self.other, self.other_reach), (self.float32, self.float32_reach))
        )
        return f"{self.name} {' (float32: '.join(both)})"


@dataclass(frozen=True)
class TaskReport:
    """How a file of another precision decodes the task's sentences, beside the model in float32. Greedy search.

    Attributes:
        file: the file that searches.
        precision: of the file.
        data: name of the task's data.
        sentences: how many there are.
        same: how many get the same tokens as in float32.
        tokens: share of the tokens that are the same, 0 to 1.
        score: mean absolute difference of the scores of these sentences, in log-probability for a token.
        target: the share of sentences that must be the same; None if they need not.
        measures: against the references, if the data have some.
    """

    file: str
    precision: str
    data: str
    sentences: int
    same: int
    tokens: float
    score: float
    target: float | None = None
    measures: tuple[Measure, ...] = ()

    @property
    def share(self) -> float:
        """The share of sentences that get the same tokens, 0 to 1."""
        return self.same / self.sentences

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of :attr:`share`, by Wilson's score: https://doi.org/10.1080/01621459.1927.10502953."""
        n, share = self.sentences, self.share
        centre = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
        reach = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
        return max(0.0, centre - reach), min(1.0, centre + reach)

    @property
    def passed(self) -> bool:
        """Whether the share reaches the target, if there is one."""
        return self.target is None or self.share >= self.target

    @property
    def words(self) -> str:
        """The result in a sentence without an end."""
        low, high = (100 * bound for bound in self.interval)
        same = f"{self.same:,} of {self.sentences:,} sentences of {self.data} get the same tokens as in float32"
        wanted = "" if self.passed or self.target is None else f", and {100 * self.target:g} % must"
        return f"{same}: {100 * self.share:.1f} % ({low:.1f} to {high:.1f}){wanted}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "passed": self.passed, "interval": list(self.interval)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TaskReport:
        """The report that :meth:`to_dict` wrote."""
        own = {name: value for name, value in values.items() if name not in ("passed", "interval")}
        return cls(**{**own, "measures": tuple(Measure(**measure) for measure in own["measures"])})
