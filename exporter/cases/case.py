"""A case: one set of inputs for a graph, and what its outputs must be equal to if it is an identity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..contracts.contract import Axis, Contract

Array = NDArray[np.generic]
SMALL = 36  # positions, source and target of the whole batch: what slow runtimes are asked to do


@dataclass(frozen=True)
class SameAs:
    """Where the outputs of a case must be those of another case.

    Attributes:
        case: the other's number in the plan.
        theirs, ours: by output, positions in the other's flattened output and in this case's.
        shapes: of this case's outputs.
    """

    case: int
    theirs: dict[str, NDArray[np.int64]]
    ours: dict[str, NDArray[np.int64]]
    shapes: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    """One set of inputs.

    Attributes:
        name: short and unique in its plan.
        inputs: an array for each input of the contract; optional ones may be missing.
        words: sizes and masks, for people.
        group: ``shapes``, ``disturbed``, ``identities``, ``optional``, ``steps``, ``range`` or ``own``.
        same_as: for an identity, what the outputs must be equal to.
        small: whether a slow runtime is asked for it, too.
        alone: whether it has one sentence only.
    """

    name: str
    inputs: dict[str, Array]
    words: str
    group: str = "shapes"
    same_as: SameAs | None = None
    small: bool = False
    alone: bool = False


def sizes_of(contract: Contract, case: Case) -> dict[str, int]:
    """The length of each axis in a case."""
    sizes: dict[str, int] = {}
    for spec in contract.inputs:
        if spec.name in case.inputs:
            for axis, size in zip(spec.axes, case.inputs[spec.name].shape, strict=True):
                if isinstance(axis, Axis):
                    sizes[axis.name] = size // axis.times
    return sizes


def is_small(sizes: dict[str, int]) -> bool:
    """Whether a slow runtime can be asked for a case of these lengths."""
    return sizes.get("batch", 1) * sum(size for name, size in sizes.items() if name != "batch") <= SMALL


def small(case: Case) -> bool:
    """Whether a slow runtime is asked for a case."""
    return case.small


def small_shape(case: Case) -> bool:
    """Whether a slow runtime that only has to agree is: each shape and mask once."""
    return case.small and case.group not in ("disturbed", "identities")
