"""Identities: cases whose outputs must equal those of another case of the plan, in PyTorch and in every graph.

Values at padding change no real position; later positions change no earlier output; a sentence gives the same result
alone, without its padding, as in a batch. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..contracts.contract import PADDING, Axis, Contract, TensorSpec, length_axis
from .case import Array, Case, SameAs, sizes_of
from .masks import hidden_in, hides
from .plan import disturb, make_plan, optional_cases, step_cases
from .search_plan import make_search_plan

# From the name of an axis to the positions [batch, length] that are compared; None for all.
Compared = Callable[[str], NDArray[np.bool_] | None]
EACH = 3  # cases for each identity
LIMIT = 400_000  # the largest output, in values, of a case that an identity is made from: larger ones need much memory


def whole_plan(
    contract: Contract, level: str = "standard", own: Sequence[Case] = (), present: Collection[str] = ()
) -> list[Case]:
    """The plan of a graph, then its identities, then the user's ``own`` cases.

    Args:
        contract: the graph's contract.
        level: level of the plan.
        own: the user's own cases.
        present: names of the graphs that are tested as well. Shapes that the parts of a graph are run with are not
            all run again.
    """
    if contract.searches:
        plan = make_search_plan(contract, level=level)
    else:
        parts = set(contract.made_of)
        plan = make_plan(contract, level=level, parts_too=bool(parts) and parts <= set(present))
        plan += identities(contract, plan)
    return plan + [replace(case, name=f"{len(plan) + index:02d}") for index, case in enumerate(own)]


def every_case(
    contract: Contract, level: str, own: Sequence[Case], *, flexible: Contract | None, present: Collection[str]
) -> list[Case]:
    """All cases for a graph: the whole plan, and the cases for only some of its files.

    Args:
        contract: the graph's contract.
        level: level of the plan.
        own: the user's own cases.
        flexible: the contract with optional masks, if some file of the graph has them.
        present: names of the graphs that are tested as well. With ``step``, ``full`` is also run by cached steps. They
            take no padding in the target, so cases without it are added.
    """
    plan = whole_plan(contract, level, own, present)
    if flexible is not None and not contract.searches:
        plan += optional_cases(flexible, first=len(plan))
    if "step" in present and contract.composed:
        plan += step_cases(plan)
    return plan


def only(plan: Sequence[Case], keep: Callable[[Case], bool]) -> list[Case]:
    """The cases of ``plan`` that are to be kept, with the cases that identities among them must agree with."""
    chosen = [number for number, case in enumerate(plan) if keep(case)]
    chosen = sorted({*chosen, *(same.case for number in chosen if (same := plan[number].same_as) is not None)})
    places = {number: place for place, number in enumerate(chosen)}

    def moved(case: Case) -> Case:
        same = case.same_as
        return case if same is None else replace(case, same_as=replace(same, case=places[same.case]))

    return [moved(plan[number]) for number in chosen]


def identities(contract: Contract, plan: Sequence[Case], seed: int = 0) -> list[Case]:
    """The cases whose outputs must equal those of other cases of ``plan``; they go after the plan."""
    found: list[Case] = []
    for way in (_behind_padding, _future, _alone):
        possible = []
        for number, case in enumerate(plan):
            if case.group == "shapes" and case.small and _output_size(contract, case) <= LIMIT:
                derived = way(contract, case, number, np.random.default_rng([seed, 3000 + number]))
                if derived is not None:
                    possible.append(derived)
        # Cases with padding come first: cutting it off tests more.
        possible.sort(key=lambda case: "padding" not in case.words)
        step = max(1, len(possible) // EACH)
        found += possible[::step][:EACH]
    return [replace(case, name=f"{len(plan) + index:02d}") for index, case in enumerate(found)]


# --- the three identities --------------------------------------------------------------------------------------------


def _behind_padding(contract: Contract, case: Case, number: int, rng: np.random.Generator) -> Case | None:
    """Other values at padding: the outputs at real positions must stay."""
    inputs = dict(case.inputs)
    changed: dict[str, NDArray[np.bool_]] = {}  # by axis: [batch, length]
    for spec in contract.inputs:
        hidden = _hidden(contract, spec, case)
        if hidden is None or not hidden.any() or hidden.all():
            continue
        other = disturb(spec, case.inputs[spec.name], rng)
        where = _broadcast(spec, hidden, other.shape)
        inputs[spec.name] = np.where(where, other, case.inputs[spec.name])
        axis = length_axis(spec).name
        changed[axis] = changed.get(axis, np.zeros_like(hidden)) | hidden
    if not changed:
        return None
    same = _same_where(contract, case, number, lambda axis: ~changed[axis] if axis in changed else None)
    return Case(
        "", inputs, f"as case {case.name} with other content behind the padding", "identities", same, case.small
    )


def _future(contract: Contract, case: Case, number: int, rng: np.random.Generator) -> Case | None:
    """Other values after the middle: the outputs up to it must stay."""
    for spec in contract.inputs:
        if not spec.future or spec.name not in case.inputs:
            continue
        sizes = sizes_of(contract, case)
        axis = length_axis(spec).name
        length, middle = sizes[axis], sizes[axis] // 2
        if length < 2 or (spec.future != "inside" and not _is_causal(case.inputs.get(spec.future))):
            continue
        later = np.broadcast_to(np.arange(length) > middle, (sizes["batch"], length))
        if not later.any():
            continue
        other = disturb(spec, case.inputs[spec.name], rng)
        inputs = {**case.inputs}
        inputs[spec.name] = np.where(_broadcast(spec, later, other.shape), other, case.inputs[spec.name])
        same = _same_where(contract, case, number, partial(_before, axis, later))
        words = f"as case {case.name} with another {spec.name} after position {middle}"
        return Case("", inputs, words, "identities", same, case.small)
    return None


def _alone(contract: Contract, case: Case, number: int, rng: np.random.Generator) -> Case | None:
    """One sentence of a batch alone, without the padding on its right if a mask hides it."""
    sizes = sizes_of(contract, case)
    if sizes.get("batch", 1) < 2:
        return None
    row = int(rng.integers(sizes["batch"]))
    lengths = {axis: _real_length(contract, case, axis, row, size) for axis, size in sizes.items() if axis != "batch"}
    cut = {"batch": (row, row + 1), **{axis: (0, length) for axis, length in lengths.items()}}
    inputs = {
        spec.name: np.ascontiguousarray(_cut(case.inputs[spec.name], spec, cut))
        for spec in contract.inputs
        if spec.name in case.inputs
    }
    theirs, ours, shapes = {}, {}, {}
    for spec in contract.outputs:
        shape = spec.shape(sizes)
        part = _cut(np.arange(int(np.prod(shape))).reshape(shape), spec, cut)
        theirs[spec.name], shapes[spec.name] = part.ravel().astype(np.int64), part.shape
        ours[spec.name] = np.arange(part.size)
    cut_off = any(lengths[axis] < sizes[axis] for axis in lengths)
    words = f"sentence {row} of case {case.name} alone{', without its padding' if cut_off else ''}"
    return Case("", inputs, words, "identities", SameAs(number, theirs, ours, shapes), case.small)


# --- helpers ---------------------------------------------------------------------------------------------------------


def _output_size(contract: Contract, case: Case) -> int:
    sizes = sizes_of(contract, case)
    return max(int(np.prod(spec.shape(sizes))) for spec in contract.outputs)


def _hidden(contract: Contract, spec: TensorSpec, case: Case) -> NDArray[np.bool_] | None:
    """Where padding hides the input ``spec``, ``[batch, length]``; None if no mask hides it in this case."""
    if not spec.hidden_by or any(mask not in case.inputs for mask in spec.hidden_by):
        return None
    return np.logical_and.reduce([hidden_in(contract.input(name), case.inputs[name]) for name in spec.hidden_by])


def _broadcast(spec: TensorSpec, where: Array, shape: tuple[int, ...]) -> Array:
    """``where [batch, length]`` broadcast to ``shape``, the dimensions of ``spec``. If these have no batch, a position
    is True if it is True in every sentence.
    """
    names = [axis.name if isinstance(axis, Axis) else "" for axis in spec.axes]
    length = names.index(length_axis(spec).name)
    batch = names.index("batch") if "batch" in names else None
    if batch is None:
        where = np.logical_and.reduce(where)
    elif length < batch:
        where = where.T
    sizes = [size if place in (batch, length) else 1 for place, size in enumerate(shape)]
    return np.broadcast_to(where.reshape(sizes), shape)


def _before(axis: str, later: NDArray[np.bool_], found: str) -> NDArray[np.bool_] | None:
    return ~later if found == axis else None


def _same_where(contract: Contract, case: Case, number: int, compared: Compared) -> SameAs:
    """The outputs must equal those of case ``number`` at the positions in ``compared``."""
    sizes = sizes_of(contract, case)
    ours, shapes = {}, {}
    for spec in contract.outputs:
        shape = spec.shape(sizes)
        lengths = [axis.name for axis in spec.axes if isinstance(axis, Axis) and axis.name != "batch"]
        where = compared(lengths[0]) if lengths else None
        positions = np.ones(shape, dtype=bool) if where is None else _broadcast(spec, where, shape)
        ours[spec.name], shapes[spec.name] = np.flatnonzero(positions), shape
    return SameAs(number, ours, ours, shapes)


def _is_causal(mask: Array | None) -> bool:
    """Whether a mask ``[.., T, T]`` hides all later positions."""
    if mask is None:
        return False
    hidden = hides(mask)
    target, source = hidden.shape[-2:]
    return bool(hidden[..., np.arange(source) > np.arange(target)[:, None]].all())


def _real_length(contract: Contract, case: Case, axis: str, row: int, size: int) -> int:
    """The length of sentence ``row`` on ``axis`` without the padding on its right; ``size`` if it cannot be cut off."""
    on_axis = [spec for spec in contract.inputs if axis in {a.name for a in spec.axes if isinstance(a, Axis)}]
    content = [spec for spec in on_axis if spec.role in ("ids", "values")]
    hidden = [_hidden(contract, spec, case) for spec in content]
    padding = [spec for spec in on_axis if spec.role in PADDING and spec.name in case.inputs]
    if not content or any(where is None for where in hidden):
        return size
    real = np.flatnonzero(~np.logical_and.reduce([hidden_in(spec, case.inputs[spec.name]) for spec in padding])[row])
    return int(real[-1]) + 1 if real.size else size


def _cut(array: Array, spec: TensorSpec, cut: dict[str, tuple[int, int]]) -> Array:
    index = tuple(
        slice(cut[axis.name][0] * axis.times, axis.length(cut[axis.name][1])) if isinstance(axis, Axis) else slice(None)
        for axis in spec.axes
    )
    return array[index]
