"""Reference cases that are stored in a bundle, so that it can be verified without PyTorch. Imports no torch.

A bundle stores as many cases as fit into 5 MB, small ones first: the inputs, the reference at random positions (from a
fixed seed), and the noise.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..cases.case import Array, Case, sizes_of
from ..contracts.contract import Contract
from ..errors import BundleError
from ..formats.table import Format
from .compare import Expected

STORED = "reference.npz"
BUNDLE_LIMIT = 5_000_000  # bytes
POSITIONS = 2048  # positions of all outputs of a case together
LEAST_POSITIONS = 128  # positions of one output, at least
INDEX = "index"  # name of the array with the JSON that describes all others


@dataclass(frozen=True)
class StoredCases:
    """The cases of a graph or of its int8 file, the reference of each, and their size in bytes without compression."""

    plan: tuple[Case, ...]
    expected: tuple[Mapping[str, Expected], ...]
    nbytes: int = 0


def key_of(known: Format, graph: str, *, lifted: bool = False) -> str:
    """The name of the stored cases that a file is held against.

    All formats share those of a graph, but for formats whose weights are not the model's own: they have some for runs
    that round, and some for ``lifted`` ones.
    """
    if not known.made_of:
        return graph
    return f"{graph}.{known.name}{'.exact' if lifted else ''}"


def choose(plan: Sequence[Case], sizes: Sequence[int], limit: int) -> list[int]:
    """The numbers of as many cases as fit into ``limit`` bytes, and of at least one.

    Cases are chosen in rounds: each round takes the smallest case that is left of each group.

    Args:
        plan: the cases.
        sizes: of each in bytes; see :func:`size_of`.
        limit: in bytes.
    """
    turns: dict[int, int] = {}  # for each case the number of smaller cases in its group
    groups = Counter[str]()
    for number in sorted(range(len(plan)), key=sizes.__getitem__):
        turns[number] = groups[plan[number].group]
        groups[plan[number].group] += 1
    chosen: list[int] = []
    total = 0
    for number in sorted(turns, key=lambda number: (turns[number], sizes[number])):
        if total + sizes[number] <= limit or not chosen:
            total += sizes[number]
            chosen.append(number)
    return sorted(chosen)


def size_of(contract: Contract, case: Case) -> int:
    """Bytes that a case takes in a bundle, without compression; known before the model has run it."""
    if contract.searches:  # at most: ids up to the longest sentence, a length and a score, of each hypothesis
        hypotheses = case.inputs["src"].shape[0] * max(1, int(case.inputs.get("num_hypotheses", 1)))
        values = hypotheses * (2 + max(1, int(case.inputs["max_length"])))
    else:
        sizes, most = sizes_of(contract, case), _most(len(contract.outputs))
        same = {} if case.same_as is None else case.same_as.ours
        whole = {spec.name: math.prod(spec.shape(sizes)) for spec in contract.outputs}
        values = sum(min(same[name].size if name in same else size, most) for name, size in whole.items())
    return sum(array.nbytes for array in case.inputs.values()) + 16 * values


def store(plan: Sequence[Case], expected: Sequence[Mapping[str, Expected]]) -> StoredCases:
    """Cases with their references at a part of the positions."""
    rng = np.random.default_rng(0)
    thinned = [{name: _thin(output, rng, len(outputs)) for name, output in outputs.items()} for outputs in expected]
    nbytes = sum(array.nbytes for case in plan for array in case.inputs.values())
    nbytes += sum(16 * output.values.size for outputs in thinned for output in outputs.values())
    return StoredCases(tuple(plan), tuple(thinned), nbytes)


def _most(outputs: int) -> int:
    """The most positions of one output, of so many that a case has."""
    return max(LEAST_POSITIONS, POSITIONS // outputs)


def _thin(expected: Expected, rng: np.random.Generator, outputs: int) -> Expected:
    """The reference at a part of its positions; ``outputs`` is the number of outputs of the case."""
    size = expected.values.size
    ties = expected.ties or (expected.other and expected.other[1])
    kept = size if ties else min(size, _most(outputs))  # with ties, whole sentences are compared
    chosen = np.sort(rng.choice(size, kept, replace=False)).astype(np.int64)
    positions = chosen if expected.positions is None else expected.positions[chosen]
    scale = float(np.abs(expected.values).max(initial=0.0)) if expected.scale is None else expected.scale
    values = expected.values.ravel()[chosen]
    return replace(expected, values=values, positions=positions, shape=expected.full_shape, scale=scale)


def write_stored(path: Path, graphs: Mapping[str, StoredCases]) -> None:
    """Write the cases of all graphs to the ``.npz`` file ``path``."""
    arrays: dict[str, Array] = {}
    index: dict[str, Any] = {}
    for graph, stored in graphs.items():
        index[graph] = []
        for case, outputs in zip(stored.plan, stored.expected, strict=True):
            at = f"{graph}/{case.name}"
            arrays |= {f"{at}/in/{name}": array for name, array in case.inputs.items()}
            outputs_about = {}
            for name, output in outputs.items():
                assert output.positions is not None
                arrays[f"{at}/values/{name}"] = output.values
                arrays[f"{at}/positions/{name}"] = output.positions
                outputs_about[name] = {"noise": output.noise, "shape": list(output.full_shape), "scale": output.scale}
                if output.spread:
                    outputs_about[name]["spread"] = list(output.spread)
                if output.other is not None:
                    outputs_about[name] |= {"other_noise": output.other[0], "other_ties": list(output.other[1])}
                if output.exact or output.ties:
                    outputs_about[name] |= {"exact": output.exact, "ties": list(output.ties), "pad": output.pad}
            about = {
                "group": case.group,
                "small": case.small,
                "alone": case.alone,
                "core": case.core,
                "inputs": list(case.inputs),
                "outputs": outputs_about,
            }
            index[graph].append({"name": case.name, "words": case.words, **about})
    arrays[INDEX] = np.frombuffer(json.dumps(index).encode(), dtype=np.uint8)
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_stored(path: Path) -> dict[str, StoredCases]:
    """The cases that :func:`write_stored` wrote, by graph.

    Raises:
        BundleError: if the file is missing or damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            index = json.loads(arrays[INDEX].tobytes())
            return {graph: _read_graph(arrays, graph, entries) for graph, entries in index.items()}
    except FileNotFoundError as error:
        raise BundleError(
            f"{path.parent} holds no reference cases", "it was exported with --no-verify: export it again without"
        ) from error
    except Exception as error:  # zipfile, zlib, numpy and json raise many types for a damaged file
        raise BundleError(f"{path} is damaged: {error}", "export the bundle again") from error


def _read_graph(arrays: Mapping[str, Array], graph: str, entries: list[dict[str, Any]]) -> StoredCases:
    plan, expected = [], []
    for entry in entries:
        at = f"{graph}/{entry['name']}"
        inputs = {name: arrays[f"{at}/in/{name}"] for name in entry["inputs"]}
        marks = {"small": entry["small"], "alone": entry.get("alone", False)}  # older bundles have no alone and no core
        marks["core"] = entry.get("core", entry["small"] or marks["alone"])
        plan.append(Case(entry["name"], inputs, entry["words"], entry["group"], **marks))
        expected.append(
            {
                name: Expected(
                    arrays[f"{at}/values/{name}"].astype(np.float64),
                    float(about["noise"]),
                    arrays[f"{at}/positions/{name}"].astype(np.int64),
                    tuple(about["shape"]),
                    float(about["scale"]),
                    bool(about.get("exact", False)),
                    tuple(about.get("ties", ())),
                    about.get("pad"),
                    tuple(about.get("spread", ())),  # older bundles have none
                    (float(about["other_noise"]), tuple(about["other_ties"])) if "other_noise" in about else None,
                )
                for name, about in entry["outputs"].items()
            }
        )
    return StoredCases(tuple(plan), tuple(expected))
