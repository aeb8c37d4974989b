"""The distribution of errors: the number of errors of each size, by powers of two. Imports no torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# The first and last power of two, of an error in units of what the factor 1 allows. Other errors count as one of these.
LOWEST, HIGHEST = -12, 7
# Bits of a float64 that are dropped. Four bits after the point are left: sizes differ by 1/16, and counting is cheap.
DROPPED = 48
INFINITE = 0x7FF << (52 - DROPPED)  # sizes from here on are infinity and NaN

Spread = tuple[int, ...]  # the number of errors for each power of two from LOWEST to HIGHEST
Sizes = NDArray[np.int64]  # [2, n]: the sizes that occur, and the number of errors of each


def tally(errors: NDArray[np.float64]) -> Sizes:
    """The number of ``errors`` of each size. A size is the exponent and the first four bits of the float64.

    This is faster than logarithms of tens of megabytes, and needs no memory, because it overwrites ``errors``.

    Args:
        errors: magnitudes, none negative; their values are lost.
    """
    bits: Any = errors.ravel(order="K").view(np.int64)
    bits >>= DROPPED
    counts = np.bincount(bits)
    kept = np.flatnonzero(counts)
    return np.stack([kept, counts[kept]]).astype(np.int64, copy=False)


def spread_of(sizes: Sizes, unit: float) -> Spread:
    """The number of errors for each power of two from :data:`LOWEST` to :data:`HIGHEST`, in units of ``unit``.

    Args:
        sizes: the result of :func:`tally`.
        unit: the error that the factor 1 allows; if it is 0, any error counts as the highest power.
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


def add_spreads(spreads: list[Spread]) -> Spread:
    """The sum of several distributions; empty if there are none."""
    return tuple(sum(counts) for counts in zip(*spreads, strict=True))
