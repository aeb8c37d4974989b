"""What "equal" means: one comparison rule for every format and runtime.

An output passes if ``max|graph - ref64| <= 4 * noise + 4 ULP * max|ref64|``. The reference is the model in float64. The
noise is the largest error of PyTorch's own float32 runs on the same case. So a graph must be about as accurate as
PyTorch, for every model, and nobody has to choose a tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cases.case import Array
from ..contracts.contract import Contract
from .spread import Spread, spread_of, tally

FACTOR = 4.0  # the factor that is allowed in float32
EXACT = 0.1  # the factor that is allowed for a file in float64, where there is almost no rounding
ULP = float(np.finfo(np.float32).eps)
NOISE_LIMIT = 1e-3  # relative to the scale: with more noise, float32 is too inaccurate to judge a graph
ROUNDED_LIMIT = (
    0.5  # where activations are rounded to 8 bits: one value rounded up or down moves a tiny model by a fifth
)
SMALLEST = float(np.finfo(np.float32).tiny)  # noise below this is accepted even if the scale is 0

PASS, FAIL, NOT_JUDGED = "pass", "fail", "not judged"


@dataclass(frozen=True)
class Expected:
    """The reference for an output in one case: all its values, or the values at some positions.

    Attributes:
        values: the model's result in float64.
        noise: the largest error of PyTorch's float32 runs, anywhere in the output.
        positions: positions of ``values`` in the flattened output; None if ``values`` is the whole output.
        shape: the shape of the whole output; None if it is the shape of ``values``.
        scale: the largest magnitude in the whole output; None if it is the largest in ``values``.
        exact: whether the values are ids or counts, which must all be equal.
        ties: indices of sentences, in the first dimension, that have two results that are equally right. They are not
            compared.
        pad: the padding id, if there are ties. It fills the last dimension, which is as long as the longest result.
        spread: distribution of the errors of one plain float32 run of PyTorch, in units of :attr:`unit`; see
            :mod:`~mytx.exporter.parity.spread`. Empty if it is not known.
        other: noise and ties where some activations are rounded to the other side; None if it is not known, or if none
            are rounded. See :mod:`~mytx.exporter.parity.quantised`.
    """

    values: NDArray[np.float64]
    noise: float
    positions: NDArray[np.int64] | None = None
    shape: tuple[int, ...] | None = None
    scale: float | None = None
    exact: bool = False
    ties: tuple[int, ...] = ()
    pad: int | None = None
    spread: Spread = ()
    other: tuple[float, tuple[int, ...]] | None = None

    @property
    def magnitude(self) -> float:
        """The largest magnitude in the whole output."""
        return float(np.abs(self.values).max(initial=0.0)) if self.scale is None else self.scale

    @property
    def unit(self) -> float:
        """The error that the factor 1 allows."""
        return unit_of(self.noise, self.magnitude)

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape of the whole output."""
        return self.values.shape if self.shape is None else self.shape

    def at(self, number: int) -> tuple[int, ...]:
        """The index in the whole output of the element ``number`` of the flattened ``values``."""
        flat = number if self.positions is None else int(self.positions[number])
        return tuple(int(i) for i in np.unravel_index(flat, self.full_shape))


def rounded_otherwise(reference: Mapping[str, Expected]) -> dict[str, Expected]:
    """The reference of a case where some activations are rounded to the other side; unchanged if it is not known."""

    def changed(expected: Expected) -> Expected:
        if expected.other is None:
            return expected
        noise, ties = expected.other
        return replace(
            expected, noise=max(noise, expected.noise), ties=tuple(sorted({*ties, *expected.ties})), spread=()
        )

    return {name: changed(expected) for name, expected in reference.items()}


@dataclass(frozen=True)
class Comparison:
    """The comparison of an output with its reference in one case.

    Attributes:
        output: name of the output.
        max_abs_error: the largest difference from the reference; infinite if no numbers could be compared.
        noise: the largest error of PyTorch's float32 runs.
        ratio: the smallest factor with which the output would pass; :data:`FACTOR` is allowed.
        verdict: ``pass``, ``fail`` or ``not judged``.
        worst_index: index of the element with the largest difference.
        reason: why it did not pass.
        elements: number of elements that were compared.
        interface: whether the name, the dtype or the shape is wrong, not the values.
        ties: indices of sentences that were not compared, because they have two results that are equally right.
        allowed: the largest difference that would pass; None if there is no such number.
        spread: distribution of the errors, in units of the error that the factor 1 allows; empty for ids, or if no
            numbers could be compared.
        own_spread: the same for one plain float32 run of PyTorch, over the whole output; empty if it is not known.
    """

    output: str
    max_abs_error: float
    noise: float
    ratio: float
    verdict: str
    worst_index: tuple[int, ...] = ()
    reason: str = ""
    elements: int = 0
    interface: bool = False
    ties: tuple[int, ...] = ()
    allowed: float | None = None
    spread: Spread = ()
    own_spread: Spread = ()


def unit_of(noise: float, scale: float) -> float:
    """The error that the factor 1 allows."""
    return noise + ULP * scale


def compare_case(
    contract: Contract,
    actual: Mapping[str, Array],
    expected: Mapping[str, Expected],
    factor: float = FACTOR,
    limit: float = NOISE_LIMIT,
) -> list[Comparison]:
    """Compare the outputs of a graph in one case with the reference: names, then dtypes, shapes and values.

    Args:
        contract: contract of the graph; the lifted contract if the file is run in float64.
        actual: the outputs of the runtime, by name.
        expected: the reference, by name.
        factor: the factor that is allowed: :data:`FACTOR` or :data:`EXACT`.
        limit: the noise up to which an output is judged, relative to the scale: :data:`NOISE_LIMIT` or
            :data:`ROUNDED_LIMIT`.
    """
    names = [spec.name for spec in contract.outputs]
    surplus = sorted(set(actual) - set(names))
    results = [_failed(name, "the runtime gave an output that the contract does not have") for name in surplus]
    for spec in contract.outputs:
        if spec.name not in actual:
            results.append(_failed(spec.name, "the runtime did not give this output"))
        elif spec.name not in expected:
            results.append(_failed(spec.name, "there is no reference for this output"))
        elif str(actual[spec.name].dtype) != spec.dtype:
            reason = f"dtype {actual[spec.name].dtype}, the contract says {spec.dtype}"
            results.append(_failed(spec.name, reason))
        else:
            results.append(compare_values(spec.name, actual[spec.name], expected[spec.name], factor, limit))
    return results


def compare_values(
    output: str, actual: Array, expected: Expected, factor: float = FACTOR, limit: float = NOISE_LIMIT
) -> Comparison:
    """Compare one array with its reference. Shapes must be equal; nothing is broadcast."""
    if expected.ties:
        return _compare_untied(output, actual, expected, factor, limit)
    reference, noise = expected.values.ravel(), expected.noise
    if actual.shape != expected.full_shape:
        return _failed(output, f"shape {list(actual.shape)}, the model gives {list(expected.full_shape)}")
    if reference.size == 0 and expected.exact:  # all sentences end at once and have no ids; their lengths are compared
        return Comparison(output, 0.0, 0.0, 0.0, PASS)
    if reference.size == 0:
        return _failed(output, "there is nothing to compare: the output is empty")
    if not np.isfinite(reference).all():
        reason = "the model itself gives NaN or infinity here"
        return Comparison(output, math.inf, noise, math.inf, FAIL, (), reason)
    found = actual.ravel()
    broken = ~np.isfinite(found)
    if broken.any():
        index = tuple(int(i) for i in np.unravel_index(int(broken.argmax()), actual.shape))
        reason = f"{actual[index]} where the model gives a number"
        return Comparison(output, math.inf, noise, math.inf, FAIL, index, reason)

    if expected.positions is not None:
        found = found[expected.positions]
    error = found.astype(np.float64)
    error -= reference
    np.abs(error, out=error)  # in place: for a large vocabulary a copy has tens of megabytes
    worst = int(error.argmax())
    largest = float(error[worst])
    if expected.exact:
        return _compare_exactly(output, largest, worst, found, reference, expected)
    scale = expected.magnitude
    allowance = unit_of(noise, scale)
    ratio = largest / allowance if allowance > 0 else (0.0 if largest == 0 else math.inf)
    verdict, reason = PASS, ""
    if not ratio <= factor:  # not ">": NaN must fail
        verdict = FAIL
        reason = (
            f"{found[worst]:.8g} where the model gives {reference[worst]:.8g}: off by {largest:.2g}, allowed "
            f"{factor * allowance:.2g}; {ratio:.3g} times PyTorch's own float32 error, {factor:g} allowed"
        )
    elif not noise <= max(limit * scale, SMALLEST):  # not ">": NaN is too large
        verdict = NOT_JUDGED
        reason = f"PyTorch's own float32 error is {noise:.3g} on values up to {scale:.3g}: too large to judge by"
    spread = spread_of(tally(error), allowance)  # last, because tally overwrites the errors
    result = Comparison(output, largest, noise, ratio, verdict, expected.at(worst), reason, reference.size)
    return replace(result, allowed=factor * allowance, spread=spread, own_spread=expected.spread)


def _compare_exactly(
    output: str, largest: float, worst: int, found: Array, reference: NDArray[np.float64], expected: Expected
) -> Comparison:
    if largest == 0:
        return Comparison(output, 0.0, 0.0, 0.0, PASS, (), "", reference.size)
    reason = f"{found[worst]:g} where the model gives {reference[worst]:g}"
    return Comparison(output, largest, 0.0, math.inf, FAIL, expected.at(worst), reason, reference.size)


def _compare_untied(output: str, actual: Array, expected: Expected, factor: float, limit: float) -> Comparison:
    """Compare the sentences without ties. The last dimension may differ in length because of the others."""
    shape = expected.full_shape
    values = expected.values.reshape(shape)
    if expected.pad is not None and actual.shape[:-1] == shape[:-1]:
        length = max(actual.shape[-1], shape[-1])
        actual, values = _padded_to(actual, length, expected.pad), _padded_to(values, length, expected.pad)
    if actual.shape != values.shape:
        return _failed(output, f"shape {list(actual.shape)}, the model gives {list(shape)}")
    keep = [sentence for sentence in range(shape[0]) if sentence not in expected.ties]
    if not keep:
        return Comparison(output, 0.0, expected.noise, 0.0, PASS, ties=expected.ties)
    rest = replace(expected, values=values[keep], positions=None, shape=None, ties=())
    result = compare_values(output, actual[keep], rest, factor, limit)
    where = (keep[result.worst_index[0]], *result.worst_index[1:]) if result.worst_index else ()
    return replace(result, worst_index=where, ties=expected.ties)


def _padded_to(values: Any, length: int, pad: int) -> Any:
    more = [(0, 0)] * (values.ndim - 1) + [(0, length - values.shape[-1])]
    return np.pad(values, more, constant_values=pad)


def _failed(output: str, reason: str) -> Comparison:
    return Comparison(output, math.inf, math.nan, math.inf, FAIL, (), reason, interface=True)
