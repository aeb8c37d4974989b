"""Weights as 8-bit integers: what is quantised, and how. The rule for files, for their check, and for the model.

Each row of a matrix, an output of its product or the vector of an id, has a scale of its own. The integers of products
go from -64 to 64 only: processors with AVX2 and without VNNI add two products of a signed and an unsigned byte in 16
bits, and larger ones saturate there, so the same file would give other results on other machines. Where rows are only
looked up, embeddings and positions, they go from -127 to 127.

A scale has at most 16 significant bits. So an integer times its scale is a float32 exactly, the quantised weights can
be put back into the model without rounding, and to quantise them once more changes nothing. No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cases.case import Array
from ..errors import ExportError

LIMIT = 64  # the largest integer in a product: 2 * 255 * 64 fits into 16 bits
LOOKUP_LIMIT = 127  # in what is only looked up
SCALE_BITS = 16  # 7 bits of an integer times these have 23, a float32 has 24
TINY = 2.0**-100  # a row of smaller values is 0: its scale could not have that many bits
SCALE = ".scale"  # ends the name of a matrix's scales


@dataclass(frozen=True)
class Quantised:
    """A matrix in integers.

    Attributes:
        values: int8, in the shape of the matrix.
        scales: float32, ``[rows, 1, …]``: one for each row, in as many dimensions.
    """

    values: NDArray[np.int8]
    scales: NDArray[np.float32]

    def floats(self) -> NDArray[np.float32]:
        """The matrix that the integers stand for, float32; exact."""
        return self.values.astype(np.float32) * self.scales


def limit_of(name: str, looked_up: Collection[str]) -> int:
    """The largest integer of a matrix; ``looked_up`` has the names of those in no product."""
    return LOOKUP_LIMIT if name in looked_up else LIMIT


def is_matrix(shape: Sequence[int]) -> bool:
    """Whether a weight of this shape is quantised: not a vector, and not a single row."""
    return len(shape) > 1 and shape[0] > 1 and math.prod(shape[1:]) > 1


def quantise(name: str, matrix: Array, limit: int = LIMIT) -> Quantised:
    """``matrix`` in integers.

    Args:
        name: of the weight, for the error.
        matrix: float32 ``[rows, …]``.
        limit: the largest integer, :data:`LIMIT` or :data:`LOOKUP_LIMIT`.

    Raises:
        ExportError: where a value is NaN or infinite.
    """
    if not np.isfinite(matrix).all():
        raise ExportError(f"{name} has values that are NaN or infinite: int8 cannot hold them", "use --precision fp32")
    exact = np.asarray(matrix, np.float64).reshape(len(matrix), -1)
    largest = np.abs(exact).max(axis=1, keepdims=True)
    mantissa, exponent = np.frexp(largest / limit)
    # Rounded up, so that no value becomes more than the largest integer.
    scales = np.ldexp(np.ceil(np.ldexp(mantissa, SCALE_BITS)), exponent - SCALE_BITS)
    scales = np.where(largest < TINY, 1.0, scales)
    values = np.rint(exact / scales).astype(np.int8).reshape(matrix.shape)
    return Quantised(values, scales.astype(np.float32).reshape(-1, *[1] * (matrix.ndim - 1)))


def quantised_weights(weights: Mapping[str, Array], looked_up: Collection[str] = ()) -> dict[str, Array]:
    """What a file holds for ``weights``: integers and scales for each matrix, all else as it is.

    Args:
        weights: float32, by name.
        looked_up: the names of matrices that are in no product.

    Raises:
        ExportError: as :func:`quantise`.
    """
    found: dict[str, Array] = {}
    known: dict[int, Quantised] = {}  # names that are tied have one memory
    for name, weight in weights.items():
        if is_matrix(weight.shape):
            if weight.ctypes.data not in known:
                known[weight.ctypes.data] = quantise(name, weight, limit_of(name, looked_up))
            quantised = known[weight.ctypes.data]
            found |= {name: quantised.values, name + SCALE: quantised.scales}
        else:
            found[name] = weight
    return found
