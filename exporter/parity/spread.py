"""How errors are spread: how many there are of each size, by powers of two. No torch here."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# The powers of two that are told apart, of an error in units of what the factor 1 allows. Beyond them the last counts.
LOWEST, HIGHEST = -12, 7
# Of the 52 bits after the point the first four are kept: sizes are told apart to a sixteenth, and counting is cheap.
DROPPED = 48
INFINITE = 0x7FF << (52 - DROPPED)

Spread = tuple[int, ...]
Sizes = NDArray[np.int64]  # [2, n]: which sizes there are, and how many of each


def tally(errors: NDArray[np.float64]) -> Sizes:
    """How many of ``errors``, which are not negative, have each size: by the exponent and first bits of the float64.

    Faster than logarithms of tens of megabytes, and it takes no memory: it works in that of ``errors``, which are gone.
    """
    bits: Any = errors.ravel(order="K").view(np.int64)
    bits >>= DROPPED
    counts = np.bincount(bits)
    kept = np.flatnonzero(counts)
    return np.stack([kept, counts[kept]]).astype(np.int64, copy=False)


def spread_of(sizes: Sizes, unit: float) -> Spread:
    """Counts for each power of two from :data:`LOWEST` to :data:`HIGHEST`, of an error divided by ``unit``.

    Args:
        sizes: what :func:`tally` gave.
        unit: what the factor 1 allows; where it is 0, any error at all is of the largest kind.
    """
    kept, counts = sizes
    edges: Any = (kept << DROPPED).view(np.float64)
    powers = np.full(kept.shape, float(HIGHEST))
    powers[edges == 0] = LOWEST
    usual = (kept < INFINITE) & (edges > 0)
    if unit > 0:
        powers[usual] = np.floor(np.log2(edges[usual]) - np.log2(unit))
    places = np.clip(powers, LOWEST, HIGHEST).astype(np.int64) - LOWEST
    found = np.bincount(places, weights=counts, minlength=HIGHEST - LOWEST + 1)
    return tuple(int(count) for count in found)


def together(spreads: list[Spread]) -> Spread:
    """The sum; nothing of nothing."""
    return tuple(sum(counts) for counts in zip(*spreads, strict=True))
