"""A case: one set of inputs for a graph; for an identity also the case whose outputs it must reproduce."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..contracts.contract import Axis, Contract

Array = NDArray[np.generic]
SMALL = 36  # source and target positions of the whole batch: slow runtimes run cases up to this size


@dataclass(frozen=True)
class SameAs:
    """The positions at which the outputs of a case must be equal to those of another case.

    Attributes:
        case: index of the other case in the plan.
        theirs: for each output, positions in the flattened output of the other case.
        ours: the same for this case; ``ours[i]`` must be equal to ``theirs[i]``.
        shapes: shapes of this case's outputs, by name.
    """

    case: int
    theirs: dict[str, NDArray[np.int64]]
    ours: dict[str, NDArray[np.int64]]
    shapes: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    """One set of inputs.

    Attributes:
        name: short, and unique in its plan.
        inputs: an array for each input of the contract; optional inputs may be missing.
        words: sizes and masks in words, for reports.
        group: ``shapes``, ``disturbed``, ``identities``, ``optional``, ``steps``, ``range`` or ``own``.
        same_as: for an identity, what the outputs must be equal to.
        small: whether slow runtimes run this case too.
        alone: whether the batch has one sentence.
        core: whether it is one of the few cases that every way to run a file uses. The small ones are stored with a
            bundle.
    """

    name: str
    inputs: dict[str, Array]
    words: str
    group: str = "shapes"
    same_as: SameAs | None = None
    small: bool = False
    alone: bool = False
    core: bool = False


def sizes_of(contract: Contract, case: Case) -> dict[str, int]:
    """The length of each axis in a case, by the axis's name."""
    sizes: dict[str, int] = {}
    for spec in contract.inputs:
        if spec.name in case.inputs:
            for axis, size in zip(spec.axes, case.inputs[spec.name].shape, strict=True):
                if isinstance(axis, Axis):
                    sizes[axis.name] = size // axis.times
    return sizes


def is_small(sizes: dict[str, int]) -> bool:
    """Whether slow runtimes can run a case with these lengths."""
    return sizes.get("batch", 1) * sum(size for name, size in sizes.items() if name != "batch") <= SMALL


def small(case: Case) -> bool:
    """Whether slow runtimes run this case."""
    return case.small


def core(case: Case) -> bool:
    """Whether every way to run a file uses this case."""
    return case.core


def small_core(case: Case) -> bool:
    """Whether slow runtimes whose result only has to agree use this case."""
    return case.small and case.core
