"""Weights as integers: what is quantised, and how. The rules for files, for their check, and for the model.

*int8*: each row of a matrix, an output of its product or the vector of an id, has a scale of its own. The integers of
products go from -64 to 64 only: processors with AVX2 and without VNNI add two products of a signed and an unsigned byte
in 16 bits, and larger ones saturate there, so the same file would give other results on other machines. Where rows are
only looked up, embeddings and positions, they go from -127 to 127.

*int4*: each block of 32 values in a row has a scale of its own, which makes the largest of them -8, whatever its sign;
so the integers go from -8 to 7. This is what onnxruntime's ``MatMulNBits`` reads.

A scale has at most 16 significant bits. So an integer times its scale is a float32 exactly, the quantised weights can
be put back into the model without rounding, and to quantise them once more changes nothing. No torch here.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..cases.case import Array
from ..errors import ExportError
from .table import Format

LIMIT = 64  # the largest integer in a product: 2 * 255 * 64 fits into 16 bits
LOOKUP_LIMIT = 127  # in what is only looked up
BLOCK = 32  # values of a row that share a scale in 4 bits
LOWEST = -8  # of 4 bits
SCALE_BITS = 16  # 7 bits of an integer times these have 23, a float32 has 24
TINY = 2.0**-100  # a row of smaller values is 0: its scale could not have that many bits
SCALE = ".scale"  # ends the name of a matrix's scales


@dataclass(frozen=True)
class Quantised:
    """A matrix ``[R, …]`` in integers.

    Attributes:
        values: the integers, as files hold them: of int8, int8 in the shape of the matrix; of int4, uint8
            ``[R, blocks, 16]``, two in a byte, the first in the lower half, with 8 added to each.
        scales: float32, of int8 ``[R, 1, …]``, of int4 ``[R, blocks]``.
        floats: the matrix that the integers stand for, float32; exact.
    """

    values: Array
    scales: Array
    floats: Array


@dataclass(frozen=True)
class Rule(abc.ABC):
    """How matrices are quantised.

    Attributes:
        kept: the names of those that stay float32.
    """

    precision: ClassVar[str]
    kept: frozenset[str] = frozenset()

    def takes(self, name: str, shape: Sequence[int]) -> bool:
        """Whether the weight of this name and shape is quantised."""
        return name not in self.kept and self.fits(shape)

    @abc.abstractmethod
    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a weight of this shape can be quantised, and is worth it."""

    @abc.abstractmethod
    def quantise(self, matrix: Array, looked_up: bool) -> Quantised:
        """Finite float32 values ``[R, …]`` in integers; ``looked_up`` where they are in no product."""


class Rows(Rule):
    """The rule of int8."""

    precision = "int8"

    def fits(self, shape: Sequence[int]) -> bool:
        """Not a vector, and not a single row."""
        return len(shape) > 1 and shape[0] > 1 and math.prod(shape[1:]) > 1

    def quantise(self, matrix: Array, looked_up: bool) -> Quantised:
        exact = np.asarray(matrix, np.float64).reshape(len(matrix), -1)
        largest = np.abs(exact).max(axis=1, keepdims=True)
        scales = _scales(largest, LOOKUP_LIMIT if looked_up else LIMIT)
        values = np.rint(exact / scales).astype(np.int8).reshape(matrix.shape)
        factors = scales.astype(np.float32).reshape(-1, *[1] * (matrix.ndim - 1))
        return Quantised(values, factors, values.astype(np.float32) * factors)


class Blocks(Rule):
    """The rule of int4."""

    precision = "int4"

    def fits(self, shape: Sequence[int]) -> bool:
        """Not a single row, and not rows of less than half a block, which would become larger."""
        return len(shape) > 1 and shape[0] > 1 and math.prod(shape[1:]) >= BLOCK // 2

    def quantise(self, matrix: Array, looked_up: bool) -> Quantised:
        rows = np.asarray(matrix, np.float64).reshape(len(matrix), -1)
        columns = rows.shape[1]
        exact = np.pad(rows, ((0, 0), (0, -columns % BLOCK))).reshape(len(rows), -1, BLOCK)
        largest = np.take_along_axis(exact, np.abs(exact).argmax(axis=-1, keepdims=True), axis=-1)
        scales = _scales(np.abs(largest), -LOWEST) * np.where(largest >= TINY, -1.0, 1.0)
        values = np.clip(np.rint(exact / scales), LOWEST, -1 - LOWEST)
        floats = (values * scales).reshape(len(rows), -1)[:, :columns].reshape(matrix.shape).astype(np.float32)
        # The operator adds up 8 steps for each value, and takes them off again: those of a block of zeros must be 0.
        stored = np.where(np.abs(largest) < TINY, 0.0, scales)[..., 0].astype(np.float32)
        return Quantised(packed(values), stored, floats)


RULES: Mapping[str, Rule] = {rule.precision: rule for rule in (Rows(), Blocks())}


def rule_of(known: Format, kept: Collection[str] = ()) -> Rule:
    """The rule for files in a format, of which those that are ``mixed`` have the weights ``kept`` in float32."""
    return replace(RULES[known.rule], kept=frozenset(kept if known.mixed else ()))


def packed(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Integers from -8 to 7, ``[…, n]``, two in a byte: uint8 ``[…, n / 2]``."""
    halves = (values - LOWEST).astype(np.uint8)
    return (halves[..., ::2] + halves[..., 1::2] * 16).astype(np.uint8)


def unpacked(bytes_: NDArray[Any]) -> NDArray[np.int8]:
    """The integers that were :func:`packed`, int8."""
    halves = np.stack((bytes_ & 15, bytes_ >> 4), axis=-1).reshape(*bytes_.shape[:-1], -1)
    return halves.astype(np.int8) + np.int8(LOWEST)


def quantise(name: str, matrix: Array, rule: Rule, looked_up: Collection[str] = ()) -> Quantised:
    """``matrix`` in integers.

    Args:
        name: of the weight.
        matrix: float32 ``[R, …]``, such as the rule takes.
        rule: how.
        looked_up: the names of matrices that are in no product.

    Raises:
        ExportError: where a value is NaN or infinite.
    """
    if not np.isfinite(matrix).all():
        raise ExportError(
            f"{name} has values that are NaN or infinite: {rule.precision} cannot hold them", "use --precision fp32"
        )
    return rule.quantise(matrix, name in looked_up)


def quantised_weights(weights: Mapping[str, Array], rule: Rule, looked_up: Collection[str] = ()) -> dict[str, Array]:
    """What a file holds for ``weights``: integers and scales for each matrix, all else as it is.

    Args:
        weights: float32, by name.
        rule: how.
        looked_up: the names of matrices that are in no product.

    Raises:
        ExportError: as :func:`quantise`.
    """
    found: dict[str, Array] = {}
    known: dict[int, Quantised] = {}  # names that are tied have one memory
    for name, weight in weights.items():
        if rule.takes(name, weight.shape):
            if weight.ctypes.data not in known:
                known[weight.ctypes.data] = quantise(name, weight, rule, looked_up)
            quantised = known[weight.ctypes.data]
            found |= {name: quantised.values, name + SCALE: quantised.scales}
        else:
            found[name] = weight
    return found


def _scales(largest: NDArray[np.float64], limit: int) -> NDArray[np.float64]:
    """``largest / limit``, rounded up to few bits, so that no value becomes more than the largest integer."""
    mantissa, exponent = np.frexp(largest / limit)
    scales = np.ldexp(np.ceil(np.ldexp(mantissa, SCALE_BITS)), exponent - SCALE_BITS)
    found: NDArray[np.float64] = np.where(largest < TINY, 1.0, scales)
    return found
