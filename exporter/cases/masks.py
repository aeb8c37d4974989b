"""Masks for models that have no right result for a query that may attend nowhere: PyTorch's own attention gives NaN.

Only what would leave a query nothing is opened, and of a mask that the model combines with one of its own, the first
position. No torch here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contracts.contract import PADDING, Axis, Contract, TensorSpec, length_axis

Bools = NDArray[np.bool_]


def is_padding(spec: TensorSpec) -> bool:
    """Whether an input hides positions of sentences: a padding mask, or ids of which the model makes one by itself."""
    return spec.role in PADDING or (spec.role == "ids" and spec.pad is not None)


def hides(mask: Any) -> Bools:
    """Where a mask hides, be it bool or added to the scores."""
    hidden: Bools = mask if mask.dtype == bool else np.isneginf(mask)
    return hidden


def hidden_in(spec: TensorSpec, array: Any) -> Bools:
    """Where a mask hides, or ids are padding; padding as ``[batch, length]`` whatever the order in the file is."""
    if spec.role == "keep":
        hidden: Bools = array == 0
    elif spec.role == "ids":
        hidden = array == spec.pad
    else:
        hidden = hides(array)
    if spec.role == "attention":
        return hidden
    flat = hidden.reshape([size for size, axis in zip(hidden.shape, spec.axes, strict=True) if isinstance(axis, Axis)])
    return flat.T if _batch_second(spec) else flat


def opened_inputs(contract: Contract, inputs: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """``inputs`` in which every query may attend to something, and whether that took a change."""
    specs = {spec.name: spec for spec in contract.inputs if spec.name in inputs}
    masks = {name: spec for name, spec in specs.items() if is_padding(spec)}
    padding = {name: hidden_in(spec, inputs[name]).copy() for name, spec in masks.items()}
    attention = {name: hidden_in(spec, inputs[name]).copy() for name, spec in specs.items() if spec.role == "attention"}
    for name, hidden in padding.items():
        hidden[:, 0] &= name not in contract.opened
        hidden[hidden.all(axis=1), 0] = False
    for hidden in attention.values():
        hidden[..., 0] &= ~hidden.all(axis=-1)
    for query, mask in attention.items():
        for key, hidden in padding.items():
            if specs[query].axes[-1] != length_axis(masks[key]):
                continue
            for row in hidden:  # opened for one sentence, it may be for all: one mask is theirs together
                dead = (mask | row).all(axis=-1)
                mask[..., 0] &= ~dead
                row[0] &= not dead.any()
    result, changed = dict(inputs), False
    for name, hidden in {**padding, **attention}.items():
        spec = specs[name]
        given = inputs[name].copy()
        was = hidden_in(spec, given)
        now_open = was & ~hidden
        if now_open.any():
            changed = True
            where = now_open if spec.role == "attention" else laid_out(spec, now_open, given.shape)
            given[where] = _open_value(spec)
            result[name] = given
    return result, changed


def hide_first(spec: TensorSpec, array: Any) -> Any:
    """``array`` with the first position of the first sentence hidden, for a trial."""
    hidden = np.zeros_like(hidden_in(spec, array))
    hidden[0, 0] = True
    result = array.copy()
    value = {"keep": 0, "ids": spec.pad}.get(spec.role, True if array.dtype == bool else -np.inf)
    result[laid_out(spec, hidden, array.shape)] = value
    return result


def all_open(spec: TensorSpec, array: Any) -> Any:
    """A mask that hides nothing."""
    return np.full_like(array, _open_value(spec))


def _open_value(spec: TensorSpec) -> Any:
    if spec.role == "ids":
        return 0 if spec.pad else 1
    return 1 if spec.role == "keep" else 0


def laid_out(spec: TensorSpec, flat: Bools, shape: tuple[int, ...]) -> Bools:
    """``[batch, length]`` as ``spec`` has it, which may have the batch second, and others of 1."""
    return (flat.T if _batch_second(spec) else flat).reshape(shape)


def _batch_second(spec: TensorSpec) -> bool:
    names = [axis.name for axis in spec.axes if isinstance(axis, Axis)]
    return len(names) == 2 and names[1] == "batch"


def opened(contract: Contract, case: Any) -> Any:
    """A case whose masks leave every query something, if the contract has no result for others."""
    if contract.empty_rows:
        return case
    inputs, changed = opened_inputs(contract, case.inputs)
    return replace(case, inputs=inputs, words=f"{case.words}, opened at first") if changed else case
