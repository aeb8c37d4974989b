"""Masks: where they hide positions, and how to avoid a query that may attend nowhere (an empty row).

PyTorch's own attention gives NaN for such a query. For models that have no result for it, the first position is opened
(made visible) where a row would be empty, and in every mask that the model combines with a mask of its own. Imports no
torch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contracts.contract import PADDING, Axis, Contract, TensorSpec, length_axis

Bools = NDArray[np.bool_]


def is_padding(spec: TensorSpec) -> bool:
    """Whether an input says which positions are padding: a padding mask, or ids with a padding id."""
    return spec.role in PADDING or (spec.role == "ids" and spec.pad is not None)


def hides(mask: Any) -> Bools:
    """Where a mask hides a position: True in a bool mask, -inf in a float mask."""
    hidden: Bools = mask if mask.dtype == bool else np.isneginf(mask)
    return hidden


def hidden_in(spec: TensorSpec, array: Any) -> Bools:
    """Where a mask hides a position or ids are padding.

    Padding comes as ``[batch, length]``, whatever dimensions ``spec`` has; an attention mask keeps its dimensions.
    """
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


def _open_rows(contract: Contract, inputs: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """``inputs`` with masks in which every query may attend to some position, and whether that changed anything."""
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
            for row in hidden:  # all sentences share the attention mask, so what one needs is opened for all
                dead = (mask | row).all(axis=-1)
                mask[..., 0] &= ~dead
                row[0] &= not dead.any()
    result, changed = dict(inputs), False
    for name, hidden in {**padding, **attention}.items():
        spec = specs[name]
        given = inputs[name].copy()
        opened = hidden_in(spec, given) & ~hidden
        if opened.any():
            changed = True
            where = opened if spec.role == "attention" else laid_out(spec, opened, given.shape)
            given[where] = _open_value(spec)
            result[name] = given
    return result, changed


def hide_first(spec: TensorSpec, array: Any) -> Any:
    """``array`` with the first position of the first sentence hidden."""
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
    """``flat [batch, length]`` in the dimensions of ``spec``: it may have the batch second, and dimensions of 1."""
    return (flat.T if _batch_second(spec) else flat).reshape(shape)


def _batch_second(spec: TensorSpec) -> bool:
    names = [axis.name for axis in spec.axes if isinstance(axis, Axis)]
    return len(names) == 2 and names[1] == "batch"


def without_empty_rows(contract: Contract, case: Any) -> Any:
    """``case`` with masks in which every query may attend to some position, if the contract asks for that."""
    if contract.empty_rows:
        return case
    inputs, changed = _open_rows(contract, case.inputs)
    return replace(case, inputs=inputs, words=f"{case.words}, first position visible") if changed else case
