"""What another precision does to the task: frozen dataclasses for the report. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

SHOWN = 5  # layers in a sentence
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
class Layer:
    """What it costs to have one layer in integers, and no other.

    Attributes:
        name: state-dict name of its weight; of query, key and value of an attention, which are one layer,
            ``….{q,k,v}_proj.weight``.
        weights: the names of its weights.
        divergence: mean Kullback-Leibler divergence of the distribution of the next token from float32, in nats.
        saved: bytes that its integers save.
        kept: whether it stays float32.
    """

    name: str
    weights: tuple[str, ...]
    divergence: float = 0.0
    saved: int = 0
    kept: bool = False


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
        layers: of a file in ``auto``, or if the target is missed: that with the largest divergence for its size first.
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
    layers: tuple[Layer, ...] = ()

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

    @property
    def lines(self) -> list[str]:
        """All that is known, in sentences without an end: the result, the measures, and what the layers cost."""
        tokens = f"{100 * self.tokens:.1f} % of the tokens"
        return [self.words, "; ".join([tokens, *(measure.words for measure in self.measures)])] + (
            [self.about_layers] if self.about_layers else []
        )

    @property
    def about_layers(self) -> str:
        """Which layers stay float32, or cost most; empty if nothing is known about them."""
        kept = [layer for layer in self.layers if layer.kept]
        if kept:
            return f"{len(kept)} of {len(self.layers)} layers stay float32: {_named(kept)}"
        if self.passed:
            return f"all {len(self.layers)} layers are in integers" if self.layers else ""
        return f"most is lost in {_named(self.layers)}; with --precision auto such stay float32" if self.layers else ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "passed": self.passed, "interval": list(self.interval)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TaskReport:
        """The report that :meth:`to_dict` wrote."""
        own = {name: value for name, value in values.items() if name not in ("passed", "interval")}
        layers = tuple(Layer(**{**one, "weights": tuple(one["weights"])}) for one in own.get("layers", ()))
        return cls(**{**own, "measures": tuple(Measure(**one) for one in own["measures"]), "layers": layers})


def _named(layers: Sequence[Layer]) -> str:
    """The first of ``layers``, with their divergence."""
    words = ", ".join(f"{layer.name} ({layer.divergence:.1e} nats)" for layer in layers[:SHOWN])
    return words if len(layers) <= SHOWN else f"{words} and {len(layers) - SHOWN} more"
