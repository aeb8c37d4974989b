"""The plan of a graph that searches: different sources with different search options. Imports no torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..contracts.contract import Contract
from .case import Array, Case
from .plan import LONG, check_level, fill, fit

SMALL = 36  # hypotheses times steps: slow runtimes run searches up to this size

# Options out of range. An ONNX graph replaces them by the nearest value in range.
_OUTSIDE: tuple[dict[str, float], ...] = (
    {"max_length": 0, "min_length": 9, "num_beams": 0, "num_hypotheses": 9, "length_penalty": -1},
    {"max_length": 5, "min_length": -3, "num_beams": 2, "num_hypotheses": 0},
)
# Batch, source (0 = LONG), padding, and the search options; the others have their defaults.
_ROWS: tuple[tuple[int, int, str, dict[str, float]], ...] = (
    (1, 7, "none", {"max_length": 12}),
    (2, 7, "right", {"max_length": 12, "num_beams": 1, "min_length": 2}),
    (2, 5, "left", {"max_length": 9, "num_beams": 2, "num_hypotheses": 2, "length_penalty": 0}),
    (1, 8, "holes", {"max_length": 7, "num_beams": 5, "num_hypotheses": 5, "length_penalty": 0.6}),
    (2, 4, "whole row", {"max_length": 7, "num_beams": 2, "min_length": 3, "length_penalty": 2}),
    (1, 1, "none", {"max_length": 1, "num_beams": 3, "num_hypotheses": 3}),
    (2, 6, "right", {"max_length": 14, "num_beams": 4, "num_hypotheses": 3}),
    (3, 9, "right", {"max_length": 6, "min_length": 6, "num_beams": 4}),
    (2, 5, "everything", {"max_length": 6, "num_beams": 2}),
    (3, 11, "right", {"max_length": 9, "num_beams": 4, "num_hypotheses": 4, "length_penalty": 0}),
    (5, 3, "left", {"max_length": 7, "num_beams": 2, "length_penalty": 1.5}),
    (1, 0, "none", {"max_length": 8, "num_beams": 5}),
    (3, 13, "holes", {"max_length": 14, "min_length": 1, "num_beams": 1}),
    *((2, 5, "right", options) for options in _OUTSIDE),
)
_BEAMS = (7, 10)  # they say no more of a greedy search than others do
_CORE = (1, 3, 4, 5, 13, 14)  # the smallest of each kind
_QUICK = (0, 1, 2, 3, 4, 6, 9, 13)


def make_search_plan(contract: Contract, seed: int = 0, level: str = "standard") -> list[Case]:
    """The cases for a graph that searches. They depend on contract, seed and level only.

    Raises:
        OptionError: if ``level`` is not one of :data:`~mytx.exporter.cases.plan.LEVELS`.
    """
    check_level(level)
    rows = [(number, row) for number, row in enumerate(_ROWS) if level != "quick" or number in _QUICK]
    if level == "standard" and all(spec.name != "num_beams" for spec in contract.inputs):
        rows = [(number, row) for number, row in rows if number not in _BEAMS]
    if level == "thorough":
        rows += [(1000 + number, row) for number, row in enumerate(_ROWS)]
    return [
        replace(_case(contract, f"{place:02d}", row, [seed, number]), core=number in _CORE)
        for place, (number, row) in enumerate(rows)
    ]


def _case(contract: Contract, name: str, row: tuple[int, int, str, dict[str, float]], seed: list[int]) -> Case:
    batch, source, padding, options = row
    group = "range" if options in _OUTSIDE else "shapes"
    if group == "shapes":  # limits are lower in a model with few positions or ids
        limits = {spec.name: spec.limit for spec in contract.inputs}
        options = {name: min(value, limits.get(name) or value) for name, value in options.items()}
        options |= {name: min(value, options["max_length"]) for name, value in options.items() if name == "min_length"}
    sizes = {"batch": batch, "source": fit(source or LONG, contract.axes["source"])}
    rng = np.random.default_rng(seed)
    inputs: dict[str, Array] = {}
    for spec in contract.inputs:
        if spec.role != "number":
            inputs[spec.name] = fill(spec, sizes, padding, "none", rng)
        else:
            inputs[spec.name] = np.array(options.get(spec.name, spec.default), dtype=spec.dtype)
    given = [f"{name} {value:g}" for name, value in options.items() if name in inputs]
    words = [*(f"{name} {size}" for name, size in sizes.items()), f"padding {padding}", *given]
    return Case(name, inputs, ", ".join(words), group, small=is_small_search(inputs), alone=batch == 1)


def in_range(contract: Contract, inputs: dict[str, Any]) -> bool:
    """Whether all search options are in range, so that the search uses them as they are."""
    longest, beams = int(inputs["max_length"]), int(inputs.get("num_beams", 1))
    limits = {spec.name: spec.limit for spec in contract.inputs}
    return (
        1 <= longest <= limits["max_length"]
        and 0 <= int(inputs["min_length"]) <= longest
        and 1 <= beams <= limits.get("num_beams", 1)
        and 1 <= int(inputs.get("num_hypotheses", 1)) <= beams
        and float(inputs["length_penalty"]) >= 0
    )


def is_small_search(inputs: dict[str, Any]) -> bool:
    """Whether slow runtimes can run this search."""
    hypotheses = len(inputs["src"]) * max(1, int(inputs.get("num_beams", 1)))
    return hypotheses * max(1, int(inputs["max_length"])) <= SMALL
