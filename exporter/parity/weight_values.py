"""Comparing the weights in a file with the model's, bit for bit: the rule for all formats. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from ..cases.case import Array

CONSTANT_LIMIT = 16  # a float constant with more values than this is a weight, and must be one of the model's


def compare_weights(found: Mapping[str, Array], read: Collection[str], expected: Mapping[str, Array]) -> list[str]:
    """Problems with weights that are in memory: wrong values, missing ones, and ones that should not be there.

    Args:
        found: the weights in the file, by state-dict name.
        read: the names that the graph in the file reads.
        expected: the weights that the file must contain, by state-dict name.
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
    """How a weight in the file differs from the model's, in dtype, shape or values; empty if all bits are equal."""
    if found.dtype != weight.dtype:
        return [f"{name} is {found.dtype} in the file, {weight.dtype} in the model"]
    if found.shape != weight.shape:
        return [f"{name} is {list(found.shape)} in the file, {list(weight.shape)} in the model"]
    changed = int(np.count_nonzero(_bits(found) != _bits(weight)))
    return [f"{name} differs from the model in {changed} of {weight.size} values"] if changed else []


def _bits(values: Array) -> Array:
    """The values as integers with the same bits, so that NaN equals itself, and 0 does not equal -0."""
    return np.ascontiguousarray(values).view(np.dtype(f"u{values.dtype.itemsize}"))
