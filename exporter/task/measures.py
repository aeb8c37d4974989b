"""How good results are, against references: error rates, and chrF and BLEU where sacrebleu is installed. No torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from ..parity.task_report import Measure

RESAMPLED = 1000  # times, for the intervals
SEED = 0


def distance(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The least number of insertions, deletions and replacements from one sequence to another (Levenshtein)."""
    row = np.arange(len(other) + 1)
    for place, item in enumerate(one, start=1):
        replaced = row[:-1] + np.array([item != wanted for wanted in other], dtype=np.int64)
        best = np.minimum(replaced, row[1:] + 1)
        row = np.concatenate([[place], best])
        # From left to right: each may be one more than the one before it.
        row = np.minimum.accumulate(row - np.arange(len(row))) + np.arange(len(row))
    return int(row[-1])


def measures_of(
    float32: Sequence[str], other: Sequence[str], references: Sequence[Sequence[str]], *, characters: bool
) -> list[Measure]:
    """The measures of two systems on the same sentences.

    Args:
        float32, other: the results of each as text.
        references: one or more right results for each sentence. The nearest counts.
        characters: whether tokens are characters; otherwise words.
    """
    name = "character error rate" if characters else "word error rate"
    systems = [_errors(results, references, characters) for results in (float32, other)]
    found = [_error_rate(name, *systems)]
    if find_spec("sacrebleu"):
        found += _by_sacrebleu(float32, other, references)
    return found


def _errors(results: Sequence[str], references: Sequence[Sequence[str]], characters: bool) -> Any:
    """For each sentence the errors against the nearest reference, and its length: ``[sentences, 2]``."""

    def tokens(text: str) -> Sequence[str]:
        return text if characters else text.split()

    def nearest(result: str, right: Sequence[str]) -> tuple[int, int]:
        return min((distance(tokens(result), tokens(text)), len(tokens(text))) for text in right)

    return np.array([nearest(result, right) for result, right in zip(results, references, strict=True)], dtype=float)


def _error_rate(name: str, float32: Any, other: Any) -> Measure:
    def rate(counts: Any) -> Any:
        return 100 * counts[..., 0].sum(axis=-1) / np.maximum(1, counts[..., 1].sum(axis=-1))

    chosen = np.random.default_rng(SEED).integers(0, len(float32), (RESAMPLED, len(float32)))
    bounds = [(np.percentile(rate(counts[chosen]), [2.5, 97.5])) for counts in (float32, other)]
    reaches = [float(high - low) / 2 for low, high in bounds]
    return Measure(name, float(rate(float32)), reaches[0], float(rate(other)), reaches[1])


def _by_sacrebleu(float32: Sequence[str], other: Sequence[str], references: Sequence[Sequence[str]]) -> list[Measure]:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    most = max(map(len, references))
    streams: Any = [[right[place] if place < len(right) else None for right in references] for place in range(most)]
    found = []
    for name, metric in (("chrF", CHRF()), ("BLEU", BLEU())):
        numbers: list[float] = []
        for results in (float32, other):
            score = metric.corpus_score(results, streams, n_bootstrap=RESAMPLED)
            text = score.format(width=4, signature=metric.get_signature().format(), is_json=True)
            numbers += [float(score.score), float(json.loads(text).get("confidence_var", 0.0))]
        found.append(Measure(name, *numbers))
    return found
