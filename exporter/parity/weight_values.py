"""Weights that were read from a file, held against the model's: the rule for all formats. No torch here."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from ..cases.case import Array

# A float constant with more values than this is a weight that the model does not have.
CONSTANT_LIMIT = 16


def compare_weights(found: Mapping[str, Array], read: Collection[str], expected: Mapping[str, Array]) -> list[str]:
    """What is wrong with weights that are in memory.

    Args:
        found: what the file holds, by state-dict name.
        read: the names that its graph reads.
        expected: as for :func:`check_weights`.
    """
    problems = []
    for name, array in found.items():
        if name not in expected:
            problems.append(f"{name} is in the file, but the graph has no such weight in the model")
        elif name not in read:
            problems.append(f"{name} is in the file, but no output depends on it")
        else:
            problems += differences(name, array, expected[name])
    return problems + [f"{name} is not in the file" for name in expected if name not in found]


def differences(name: str, found: Array, weight: Array) -> list[str]:
    if found.dtype != weight.dtype:
        return [f"{name} is {found.dtype} in the file, {weight.dtype} in the model"]
    if found.shape != weight.shape:
        return [f"{name} is {list(found.shape)} in the file, {list(weight.shape)} in the model"]
    changed = int(np.count_nonzero(_bits(found) != _bits(weight)))
    return [f"{name} differs from the model in {changed} of {weight.size} values"] if changed else []


def _bits(values: Array) -> Array:
    """The values as integers of the same bits: NaN equals itself, and 0 is not -0."""
    return np.ascontiguousarray(values).view(np.dtype(f"u{values.dtype.itemsize}"))
