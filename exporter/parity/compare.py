"""What "equal" means: one comparison rule for every format and runtime.

An output passes when ``max|graph - ref64| <= 4 * noise + 4 ULP * max|ref64|``. The reference is the model in float64;
the noise is the largest error of PyTorch's own float32 runs on the same case, so a graph is asked to be about as good
as PyTorch, on every model, without a tolerance to choose.
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

FACTOR = 4.0  # of float32 rounding
EXACT = 0.1  # of the same, for a file that is run in float64: nothing rounds, so almost nothing may differ
ULP = float(np.finfo(np.float32).eps)
NOISE_LIMIT = 1e-3  # of the scale: above it float32 itself is too far off to judge by
SMALLEST = float(np.finfo(np.float32).tiny)  # what is 0, with inputs that were moved by a bit, is off by less

PASS, FAIL, NOT_JUDGED = "pass", "fail", "not judged"


@dataclass(frozen=True)
class Expected:
    """The reference for an output in one case, whole or at some positions.

    Attributes:
        values: float64, as the model gives them.
        noise: the largest error of PyTorch's float32 runs, anywhere in the output.
        positions: where ``values`` are in the flattened output; None where they are all of it.
        shape: of the whole output; None where it is that of ``values``.
        scale: the largest magnitude in the whole output; None where it is that of ``values``.
        exact: the values are ids or counts, of which none may differ.
        ties: sentences, along the first dimension, for which another result is as right: they are not compared.
        pad: where some tie, what fills up the last dimension, which is as long as the longest result.
        spread: how large the errors of one plain float32 run of PyTorch are, in units of :attr:`unit`; see
            :mod:`~mytx.exporter.parity.spread`. Empty where it is not known.
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

    @property
    def magnitude(self) -> float:
        """The largest magnitude in the whole output."""
        return float(np.abs(self.values).max(initial=0.0)) if self.scale is None else self.scale

    @property
    def unit(self) -> float:
        """The error that is allowed for each unit of the factor."""
        return unit_of(self.noise, self.magnitude)

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape that the whole output must have."""
        return self.values.shape if self.shape is None else self.shape

    def at(self, number: int) -> tuple[int, ...]:
        """Where the value of that number stands in the whole output."""
        flat = number if self.positions is None else int(self.positions[number])
        return tuple(int(i) for i in np.unravel_index(flat, self.full_shape))


@dataclass(frozen=True)
class Comparison:
    """How an output compares in one case.

    Attributes:
        output: its name.
        max_abs_error: the largest difference from the reference; infinite where there is no number to compare.
        noise: the largest error of PyTorch's float32 runs.
        ratio: the smallest factor that would have passed, to be held against :data:`FACTOR`.
        verdict: ``pass``, ``fail`` or ``not judged``.
        worst_index: where the largest difference is.
        reason: why it did not pass.
        elements: how many were compared.
        interface: whether it is not the values that are wrong, but the name, dtype or shape.
        ties: sentences that were not compared, as another result is as right.
        allowed: the largest difference that would have passed; None where there is no such number.
        spread: how large the errors are, in units of what the factor 1 allows; empty for ids, or without numbers.
        own_spread: the same of one plain float32 run of PyTorch, of the whole output; empty where it is not known.
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
    """The error that is allowed for each unit of the factor."""
    return noise + ULP * scale


def compare_case(
    contract: Contract, actual: Mapping[str, Array], expected: Mapping[str, Expected], factor: float = FACTOR
) -> list[Comparison]:
    """Hold the outputs of a graph in one case against the reference: names first, then dtypes, shapes and values.

    Args:
        contract: of the graph; lifted, where the file is run in float64.
        actual: what the runtime gave.
        expected: the reference.
        factor: how much of PyTorch's own error is allowed.
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
            results.append(compare_values(spec.name, actual[spec.name], expected[spec.name], factor))
    return results


def compare_values(output: str, actual: Array, expected: Expected, factor: float = FACTOR) -> Comparison:
    """Hold one array against its reference. Shapes must be the same: nothing is broadcast."""
    if expected.ties:
        return _compare_untied(output, actual, expected, factor)
    reference, noise = expected.values.ravel(), expected.noise
    if actual.shape != expected.full_shape:
        return _failed(output, f"shape {list(actual.shape)}, the model gives {list(expected.full_shape)}")
    if reference.size == 0 and expected.exact:  # every sentence ends at once: no ids are right, lengths are compared
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
    np.abs(error, out=error)  # in place: with a large vocabulary each copy is tens of megabytes
    worst = int(error.argmax())
    largest = float(error[worst])
    if expected.exact:
        return _compare_exactly(output, largest, worst, found, reference, expected)
    scale = expected.magnitude
    allowance = unit_of(noise, scale)
    ratio = largest / allowance if allowance > 0 else (0.0 if largest == 0 else math.inf)
    verdict, reason = PASS, ""
    if not ratio <= factor:  # so written, NaN fails
        verdict = FAIL
        reason = (
            f"{found[worst]:.8g} where the model gives {reference[worst]:.8g}: off by {largest:.2g}, allowed "
            f"{factor * allowance:.2g}; {ratio:.3g} times PyTorch's own float32 error, {factor:g} allowed"
        )
    elif not noise <= max(NOISE_LIMIT * scale, SMALLEST):  # so written, NaN is too large
        verdict = NOT_JUDGED
        reason = f"PyTorch's own float32 error is {noise:.3g} on values up to {scale:.3g}: too large to judge by"
    spread = spread_of(tally(error), allowance)  # last: it works in the memory of the errors
    result = Comparison(output, largest, noise, ratio, verdict, expected.at(worst), reason, reference.size)
    return replace(result, allowed=factor * allowance, spread=spread, own_spread=expected.spread)


def _compare_exactly(
    output: str, largest: float, worst: int, found: Array, reference: NDArray[np.float64], expected: Expected
) -> Comparison:
    if largest == 0:
        return Comparison(output, 0.0, 0.0, 0.0, PASS, (), "", reference.size)
    reason = f"{found[worst]:g} where the model gives {reference[worst]:g}"
    return Comparison(output, largest, 0.0, math.inf, FAIL, expected.at(worst), reason, reference.size)


def _compare_untied(output: str, actual: Array, expected: Expected, factor: float) -> Comparison:
    """The sentences that have one right result. The last dimension may be longer or shorter for the others'."""
    shape = expected.full_shape
    values = expected.values.reshape(shape)
    if expected.pad is not None and actual.shape[:-1] == shape[:-1]:
        length = max(actual.shape[-1], shape[-1])
        actual, values = _filled_up(actual, length, expected.pad), _filled_up(values, length, expected.pad)
    if actual.shape != values.shape:
        return _failed(output, f"shape {list(actual.shape)}, the model gives {list(shape)}")
    keep = [sentence for sentence in range(shape[0]) if sentence not in expected.ties]
    if not keep:
        return Comparison(output, 0.0, expected.noise, 0.0, PASS, ties=expected.ties)
    rest = replace(expected, values=values[keep], positions=None, shape=None, ties=())
    result = compare_values(output, actual[keep], rest, factor)
    where = (keep[result.worst_index[0]], *result.worst_index[1:]) if result.worst_index else ()
    return replace(result, worst_index=where, ties=expected.ties)


def _filled_up(values: Any, length: int, pad: int) -> Any:
    more = [(0, 0)] * (values.ndim - 1) + [(0, length - values.shape[-1])]
    return np.pad(values, more, constant_values=pad)


def _failed(output: str, reason: str) -> Comparison:
    return Comparison(output, math.inf, math.nan, math.inf, FAIL, (), reason, interface=True)
