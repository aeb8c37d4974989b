"""The plan: the cases that a graph is tested with, made from its contract and a seed.

They go beyond the exported shape: batch 1, 2 and odd; lengths 1, odd, the traced one and its neighbours, long; source
shorter and longer than target; every kind of padding; random float masks, asymmetric bool masks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..contracts.contract import Axis, Contract, TensorSpec, length_axis
from ..errors import OptionError
from .case import Array, Case, is_small
from .masks import is_padding, laid_out, without_empty_rows

LONG = 61  # the length that 0 stands for in the rows below

LEVELS = ("quick", "standard", "thorough")

# Batch, source, target (0 = LONG), padding, attention mask. The traced lengths are batch 2, source 7, target 5.
_ROWS: tuple[tuple[int, int, int, str, str], ...] = (
    (2, 7, 5, "none", "causal"),
    (2, 7, 5, "right", "random"),
    (2, 7, 5, "left", "causal"),
    (1, 7, 5, "none", "random"),
    (3, 7, 5, "right", "causal"),
    (2, 6, 5, "right", "random"),
    (2, 8, 5, "holes", "causal"),
    (2, 7, 4, "left", "random"),
    (2, 7, 6, "right", "causal"),
    (2, 5, 7, "holes", "random"),
    (1, 1, 1, "none", "none"),
    (2, 1, 3, "none", "random"),
    (3, 4, 1, "right", "causal"),
    (5, 9, 3, "right", "causal"),
    (5, 3, 11, "left", "random"),
    (3, 11, 11, "holes", "asymmetric"),
    (4, 13, 6, "whole row", "causal"),
    (3, 4, 7, "whole row", "random"),
    (2, 5, 9, "everything", "causal"),
    (3, 8, 7, "none", "dead rows"),
    (2, 9, 8, "left", "dead rows"),
    (2, 31, 17, "right", "causal"),
    (1, 17, 31, "left", "random"),
    (7, 2, 2, "right", "asymmetric"),
    (1, 0, 3, "none", "none"),
    (2, 0, 9, "right", "causal"),
    (1, 5, 0, "left", "causal"),
    (2, 0, 0, "holes", "random"),
)
_QUICK = (0, 1, 2, 4, 6, 9, 10, 12, 17, 18, 20, 21)
# Each kind of padding and of attention mask once, each shape (one sentence and several, a length of 1, the source
# longer and the target longer, long ones), all as small as such a case can be.
_CORE = (1, 2, 6, 10, 11, 12, 17, 18, 20, 23, 24, 26)
# The thorough plan has all rows a second time with other values, and these.
_LONGER: tuple[tuple[int, int, int, str, str], ...] = (
    (1, 128, 127, "right", "causal"),
    (2, 127, 129, "holes", "random"),
    (1, 512, 16, "left", "causal"),
    (1, 16, 512, "right", "causal"),
)
DISTURBED = 1  # the row that is repeated with each input changed: it has padding and a random attention mask


def check_level(level: str) -> None:
    """Check that there is a plan of this level; raise :class:`OptionError` if not."""
    if level not in LEVELS:
        raise OptionError(f"there is no plan {level!r}", f"choose from {', '.join(LEVELS)}")


def make_plan(contract: Contract, seed: int = 0, level: str = "standard", *, parts_too: bool = False) -> list[Case]:
    """The cases for a graph. They depend on the arguments only.

    After the shapes come cases with one input changed in each, or one of all layers: a graph that ignores it fails
    there.

    Args:
        contract: the graph's contract.
        seed: seed of the values.
        level: ``quick`` (less than half of the shapes), ``standard``, or ``thorough`` (all twice, and long ones).
        parts_too: whether the graphs that this one consists of are tested as well. The standard plan then has the
            shapes of the quick one and the core: the parts are run with all of them.

    Raises:
        OptionError: for any other level.
    """
    check_level(level)
    rows = list(enumerate(_ROWS))
    if level == "quick":
        rows = [rows[index] for index in _QUICK]
    elif level == "standard" and parts_too:
        rows = [rows[index] for index in sorted({*_QUICK, *_CORE})]
    plan = [
        replace(_case(contract, f"{number:02d}", row, [seed, index]), core=index in _CORE)
        for number, (index, row) in enumerate(rows)
    ]
    base = plan[DISTURBED]
    for index, (name, specs) in enumerate(alike(contract.inputs).items()):
        rng = np.random.default_rng([seed, len(_ROWS) + index])
        others = {spec.name: disturb(spec, base.inputs[spec.name], rng) for spec in specs}
        words = f"as case {base.name} with another {name}"
        plan.append(Case(f"{len(plan):02d}", base.inputs | others, words, "disturbed", small=base.small))
    if level == "thorough":
        for index, row in enumerate([*_ROWS, *_LONGER]):
            plan.append(_case(contract, f"{len(plan):02d}", row, [seed, 1000 + index]))
    return [without_empty_rows(contract, case) for case in plan]


def alike(specs: Sequence[TensorSpec]) -> dict[str, list[TensorSpec]]:
    """Inputs of all layers together, by their common name: ``past_key_*``. Of the others each alone, by its name."""
    found: dict[str, list[TensorSpec]] = {}
    for spec in specs:
        found.setdefault(re.sub(r"_\d+$", "_*", spec.name), []).append(spec)
    return {specs[0].name if len(specs) == 1 else name: specs for name, specs in found.items()}


def optional_cases(contract: Contract, first: int = 0) -> list[Case]:
    """Cases for a graph with optional masks: no mask, each mask alone, and all masks.

    Args:
        contract: a contract with optional inputs.
        first: the number of the first case, which is its name.
    """
    whole = _case(contract, "", (3, 6, 5, "right", "random"), [0, 2000])
    masks = [spec.name for spec in contract.inputs if spec.optional]
    choices: dict[str, list[str]] = {"no mask": [], **{f"{name} alone": [name] for name in masks}, "every mask": masks}
    cases: list[Case] = []
    for words, given in choices.items():
        inputs = {name: array for name, array in whole.inputs.items() if name in given or name not in masks}
        cases.append(
            Case(f"{first + len(cases):02d}", inputs, f"{whole.words}, {words}", "optional", small=True, core=True)
        )
    return cases


def step_cases(plan: Sequence[Case]) -> list[Case]:
    """Cases for ``full`` run by cached steps, which take no padding in the target: the small shapes of the core of
    ``plan`` that have such padding, without it. The step graph itself is tried on all shapes.
    """
    shapes = [case for case in plan if case.group == "shapes" and case.core and case.small]
    padded = [case for case in shapes if case.inputs["tgt_key_padding_mask"].any()]
    found: list[Case] = []
    for case in padded:
        inputs = {**case.inputs, "tgt_key_padding_mask": np.zeros_like(case.inputs["tgt_key_padding_mask"])}
        words = f"as case {case.name} without padding in the target"
        name = f"{len(plan) + len(found):02d}"
        found.append(replace(case, name=name, inputs=inputs, words=words, group="steps"))
    return found


def few_cases(plan: Sequence[Case], count: int = 14) -> list[Case]:
    """A few cases of a plan, for a close look at a graph: for each kind of masks the longest case with one sentence,
    and one small case.
    """
    small: dict[str, Case] = {}
    long: dict[str, Case] = {}
    for case in plan:
        words = case.words.split(", ")
        masking = ", ".join(word for word in words if word.startswith(("padding", "attention")))
        if case.group == "shapes" and case.small:
            small.setdefault(masking, case)
        elif case.group == "shapes" and case.alone:
            long[masking] = case  # the last is the longest
    return [*long.values(), *small.values()][:count]


def example(contract: Contract) -> Case:
    """The case with the lengths of the export."""
    case = _case(contract, "00", _ROWS[0], [0, 0], {name: axis.traced for name, axis in contract.axes.items()})
    return without_empty_rows(contract, case)


def _case(
    contract: Contract,
    name: str,
    row: tuple[int, int, int, str, str],
    seed: list[int],
    traced: dict[str, int] | None = None,
) -> Case:
    batch, source, target, padding, attention = row
    source, target = source or LONG, target or LONG
    # 1 to 4 beams, 3 (the traced number) for the traced lengths; a target of length 1 means a past of length 0.
    wanted = {"batch": batch, "source": source, "target": target}
    wanted |= {"beams": (source + target + 2) % 4 + 1, "past": target - 1}
    # A user's own model may have dimensions with other names. Their lengths vary as well.
    others = [name for name in contract.axes if name not in wanted]
    wanted |= {name: (source, target)[index % 2] + index // 2 for index, name in enumerate(others)}
    sizes = traced or {name: fit(wanted[name], axis) for name, axis in contract.axes.items()}
    rng = np.random.default_rng(seed)
    inputs = {spec.name: fill(spec, sizes, padding, attention, rng) for spec in contract.inputs}
    roles = {spec.role for spec in contract.inputs}
    words = [f"{name} {size}" for name, size in sizes.items()]
    words += [f"padding {padding}"] if any(map(is_padding, contract.inputs)) else []
    words += [f"attention mask {attention}"] if "attention" in roles else []
    return Case(name, inputs, ", ".join(words), small=is_small(sizes), alone=sizes.get("batch", 1) == 1)


def fit(size: int, axis: Axis) -> int:
    """``size``, or the nearest length that ``axis`` allows."""
    size = max(size, axis.minimum)
    return size if axis.maximum is None else min(size, axis.maximum)


def fill(spec: TensorSpec, sizes: dict[str, int], padding: str, attention: str, rng: np.random.Generator) -> Array:
    """Values for one input: ids, normal floats, or a mask of the kind that ``padding`` or ``attention`` names."""
    shape = spec.shape(sizes)
    if spec.role == "ids" and spec.pad is not None:
        real = (rng.integers(1, spec.limit, shape) + spec.pad) % spec.limit
        return np.where(_padding_of(spec, shape, padding, rng), spec.pad, real).astype(np.int64)
    if spec.role == "ids":
        return rng.integers(0, spec.limit, shape, dtype=np.int64)
    if spec.role == "values":
        return rng.standard_normal(shape).astype(np.float32)
    if spec.role == "keep":
        return (~_padding_of(spec, shape, padding, rng)).astype(spec.dtype)
    hidden = _padding_of(spec, shape, padding, rng) if spec.role == "padding" else attention_mask(shape, attention, rng)
    if spec.dtype == "bool":
        return hidden
    # Float masks also contain values other than 0 and -inf, so that a runtime that treats them as bool fails.
    shades = rng.standard_normal(shape).astype(np.float32)
    if attention in ("none", "causal"):
        shades *= 0
    return np.where(hidden, np.float32(-np.inf), shades)


def _padding_of(spec: TensorSpec, shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> NDArray[np.bool_]:
    """A padding mask (True = padding) in the dimensions of ``spec``."""
    sizes = {axis: size for axis, size in zip(spec.axes, shape, strict=True) if isinstance(axis, Axis)}
    length = length_axis(spec)
    batch = next(size for axis, size in sizes.items() if axis != length)
    return laid_out(spec, padding_mask((batch, sizes[length]), kind, rng), shape)


def padding_mask(shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> NDArray[np.bool_]:
    """``[N, L]``, True = padding. ``right`` and ``left`` leave at least one real position in each row."""
    batch, length = shape
    mask = np.zeros((batch, length), dtype=bool)
    position = np.arange(length)
    count = rng.integers(0, length, (batch, 1))  # number of padding positions in each row
    if kind == "right":
        mask = position >= length - count
    elif kind == "left":
        mask = position < count
    elif kind == "holes":
        mask = rng.random((batch, length)) < 0.4
        mask[:, rng.integers(length)] = False
    elif kind == "whole row":
        mask = position >= length - count
        mask[rng.integers(batch)] = True
    elif kind == "everything":
        mask[:] = True
    return mask


def attention_mask(shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> NDArray[np.bool_]:
    """``[T, S]`` or ``[N*H, T, S]``, True = may not attend. Only ``dead rows`` has rows that may attend nowhere."""
    target, source = shape[-2:]
    if kind == "causal":
        return np.broadcast_to(np.arange(source) > np.arange(target)[:, None], shape).copy()
    if kind == "none":
        return np.zeros(shape, dtype=bool)
    mask = rng.random(shape) < (0.3 if kind == "random" else 0.6)
    open_column = rng.integers(0, source, shape[:-1])
    np.put_along_axis(mask, open_column[..., None], False, axis=-1)
    if kind == "dead rows":
        mask[..., rng.integers(target), :] = True
    return mask


def disturb(spec: TensorSpec, values: Array, rng: np.random.Generator) -> Array:
    """``values`` with every element replaced by another valid one, so that an output that depends on them changes."""
    if spec.dtype == "bool" or spec.role == "keep":
        return (~values.astype(bool)).astype(spec.dtype)
    if spec.role == "ids":
        shift = rng.integers(1, spec.limit, values.shape) if spec.limit > 1 else 0
        return (values.astype(np.int64) + shift) % spec.limit
    return np.where(np.isfinite(values), values + rng.standard_normal(values.shape).astype(np.float32), 0).astype(
        np.float32
    )
