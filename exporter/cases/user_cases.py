"""The user's own cases: ``.npz`` files with an array for each input of a graph. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..contracts.contract import Axis, Contract, TensorSpec
from ..errors import OptionError
from .case import Array, Case, is_small
from .search_plan import in_range, is_small_search


def read_cases(files: Sequence[Path | str], contracts: Sequence[Contract]) -> dict[str, list[Case]]:
    """The cases in ``files``, by graph. A file belongs to every graph whose inputs have exactly its arrays' names.

    Raises:
        OptionError: if a file cannot be read, or fits no graph.
    """
    found: dict[str, list[Case]] = {}
    for path in [Path(files)] if isinstance(files, (str, Path)) else map(Path, files):
        inputs = _load(path)
        fitting = [contract for contract in contracts if _takes(contract, set(inputs))]
        if not fitting:
            wanted = "; ".join(f"{item.graph}: {', '.join(spec.name for spec in item.inputs)}" for item in contracts)
            raise OptionError(
                f"{path} has {', '.join(inputs) or 'nothing'}, which no graph takes",
                f"give the inputs of one: {wanted}",
            )
        for contract in fitting:
            case = own_case(str(path), inputs, contract)
            found.setdefault(contract.graph, []).append(case)
    return found


def _takes(contract: Contract, names: set[str]) -> bool:
    """Whether a graph takes inputs with exactly these names. Numbers with a default may be missing, but not all of
    them: a file with ids and padding alone is a case for the encoder.
    """
    numbers = {spec.name for spec in contract.inputs if spec.default is not None}
    others = {spec.name for spec in contract.inputs} - numbers
    return others <= names <= others | numbers and (not numbers or bool(names & numbers))


def _load(path: Path) -> dict[str, Array]:
    try:
        arrays = np.load(path, allow_pickle=False)
        if isinstance(arrays, np.lib.npyio.NpzFile):
            with arrays:
                return {name: np.asarray(arrays[name]) for name in arrays.files}
    except FileNotFoundError as error:
        raise OptionError(f"{path}: no such file", "check the path of the case") from error
    except Exception as error:  # zipfile, zlib and numpy raise many types for a damaged file
        raise OptionError(
            f"{path} is not an .npz file of plain arrays", "save it with numpy.savez, by the inputs' names"
        ) from error
    raise OptionError(f"{path} is one array, not a case", "save it with numpy.savez, by the inputs' names")


def printable(text: str) -> str:
    """``text`` with control characters escaped, so that it can be shown in terminals and pages."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def own_case(name: str, inputs: dict[str, Array], contract: Contract) -> Case:
    """The user's inputs as a case for a graph; missing numbers get their defaults.

    Args:
        name: the path or a description of the inputs, for the case's words and for errors.
        inputs: arrays by name.
        contract: the graph's contract.

    Raises:
        OptionError: if they do not fit the contract.
    """
    sizes: dict[str, int] = {}
    defaults = {spec.name: np.array(spec.default, spec.dtype) for spec in contract.inputs if spec.default is not None}
    inputs = defaults | inputs
    for spec in contract.inputs:
        _check(name, spec, inputs[spec.name], sizes)
    for axis in contract.axes.values():
        size = sizes[axis.name]
        if size < axis.minimum or (axis.maximum is not None and size > axis.maximum):
            limits = f"{axis.minimum} to {axis.maximum}" if axis.maximum is not None else f"{axis.minimum} or more"
            raise OptionError(f"{name}: {axis.name} is {size}", f"{contract.graph} takes {limits}")
    words = ", ".join([printable(Path(name).name), *(f"{axis} {size}" for axis, size in sizes.items())])
    # ascontiguousarray would turn the shape [] of a number into [1]
    ordered = {spec.name: np.require(inputs[spec.name], requirements="C") for spec in contract.inputs}
    few = is_small_search(ordered) if contract.searches else is_small(sizes)
    # Numbers out of range are adjusted by ONNX graphs, but refused by TorchScript's generate: it skips this group.
    group = "own" if not contract.searches or in_range(contract, ordered) else "range"
    return Case("", ordered, words, group, small=few, core=True)


def _check(where: str, spec: TensorSpec, array: Array, sizes: dict[str, int]) -> None:
    where = f"{where}: {spec.name}"
    if str(array.dtype) != spec.dtype:
        raise OptionError(
            f"{where} is {array.dtype}", f"make it {spec.dtype}{': ' if spec.meaning else ''}{spec.meaning}"
        )
    if array.ndim != len(spec.axes):
        raise OptionError(f"{where} has shape {list(array.shape)}", f"make it {list(spec.labels)}")
    for size, axis in zip(array.shape, spec.axes, strict=True):
        expected = axis if isinstance(axis, int) else sizes.setdefault(axis.name, size // axis.times) * axis.times
        if size != expected:
            label = axis.label if isinstance(axis, Axis) else axis
            raise OptionError(f"{where} has shape {list(array.shape)}", f"its dimension {label} must be {expected}")
    if spec.role == "ids" and array.size and not (array.min() >= 0 and array.max() < spec.limit):
        raise OptionError(
            f"{where} has ids from {array.min()} to {array.max()}", f"the model has 0 to {spec.limit - 1}"
        )
    values: NDArray[np.float64] = array.astype(np.float64)
    if spec.role in ("padding", "attention") and not (values < np.inf).all():
        raise OptionError(
            f"{where} has NaN or infinity", "a mask is added to the scores: 0 = may attend, -inf = may not"
        )
    if spec.role in ("values", "number") and not np.isfinite(array).all():
        raise OptionError(f"{where} has NaN or infinity", "give finite numbers")
