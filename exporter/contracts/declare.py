"""Functions that declare the contract of your own model; :mod:`mytx.exporter.contracts` has an example."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import OptionError
from .contract import (
    ATTENTION_MEANING,
    CACHED,
    CUSTOM_LAYOUT,
    PADDING,
    PADDING_MEANING,
    Axis,
    Contract,
    TensorSpec,
    length_axis,
)

Dims = Sequence[str | int]
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
KEEP_MEANING = "1 = a real position, 0 = padding, hidden from attention"
# Lengths at export. They differ from each other and should from the model's sizes: torch.export merges equal numbers.
TRACED = {"batch": 2, "source": 7, "target": 5}
OTHERS = (11, 13, 17, 19, 23, 29)
OUTPUTS = ("float32", "int64", "bool")  # dtypes of outputs
LONGEST_NAME = 100  # characters of a graph's name: it becomes the name of a file, with a suffix
SHORTEST_LIMIT = 8  # a smaller longest length is refused: the length at export must be below it


@dataclass(frozen=True)
class CustomGraph:
    """A graph of a user's own model.

    Attributes:
        contract: the graph's inputs and outputs.
        method: name of the method or submodule that computes it; ``forward`` is the model itself.
    """

    contract: Contract
    method: str


def ids(
    name: str,
    dims: Dims,
    below: int,
    *,
    pad: int | None = None,
    hidden_by: str | Sequence[str] = (),
    future: str = "",
) -> TensorSpec:
    """An input of int64 ids, 0 to ``below - 1``.

    Args:
        name: the name of the method's argument.
        dims: dimensions: names and numbers.
        below: the size of the vocabulary.
        pad: the padding id, if the model computes a padding mask from it. Cases then have this id at padding.
        hidden_by: names of padding masks. Where all of them say padding, an id may not change any other position.
        future: ``inside`` if the model itself hides later positions, or the name of the attention mask that does.
    """
    if not _is_whole(below) or below < 2:
        raise OptionError(f"{name}: ids below {below!r} are none", "below is the size of the vocabulary, 2 or more")
    if pad is not None and pad not in range(below):
        raise OptionError(f"{name}: pad {pad!r} is no id below {below}", "leave it out if the model has no padding id")
    if not dims:
        raise OptionError(f"{name} has no dimensions", "give at least a length")
    meaning = f"ids, 0 to {below - 1}"
    spec = TensorSpec(name, "int64", _axes(dims), meaning, "ids", below, hidden_by=_names(hidden_by), future=future)
    return spec if pad is None else _padding(replace(spec, pad=pad))


def values(
    name: str, dims: Dims, dtype: str = "float32", *, hidden_by: str | Sequence[str] = (), future: str = ""
) -> TensorSpec:
    """An input of float32 values, or an output of ``float32``, ``int64`` or ``bool``; arguments as for :func:`ids`."""
    if dtype not in OUTPUTS:
        raise OptionError(f"{name} cannot be {dtype}", f"choose from {', '.join(OUTPUTS)}")
    return TensorSpec(name, dtype, _axes(dims), hidden_by=_names(hidden_by), future=future)


def padding(name: str, dims: Dims, dtype: str = "bool") -> TensorSpec:
    """A padding mask, ``bool`` (True = padding) or ``float32`` (added to the scores, -inf = padding)."""
    return _padding(TensorSpec(name, dtype, _axes(dims), _meaning(name, dtype, PADDING_MEANING), "padding"))


def keep(name: str, dims: Dims, dtype: str = "int64") -> TensorSpec:
    """A padding mask with the opposite polarity: 1 = real, 0 = padding; ``int64``, ``bool`` or ``float32``."""
    meaning = _meaning(name, dtype, dict.fromkeys(("int64", "bool", "float32"), KEEP_MEANING))
    return _padding(TensorSpec(name, dtype, _axes(dims), meaning, "keep"))


def attention(name: str, dims: Dims, dtype: str = "bool") -> TensorSpec:
    """An attention mask, ``bool`` (True = may not attend) or ``float32`` (added to the scores)."""
    if len(dims) < 2:
        raise OptionError(f"{name}: {list(dims)!r} is no attention mask", "its last two dimensions are query and key")
    return TensorSpec(name, dtype, _axes(dims), _meaning(name, dtype, ATTENTION_MEANING), "attention")


def graph(
    name: str,
    method: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    longest: Mapping[str, int] | None = None,
    empty_rows: bool = False,
) -> CustomGraph:
    """A graph of your own model.

    Args:
        name: the name of the file, without its extension.
        method: name of a method or submodule of the model; ``forward`` is the model itself.
        inputs: made with :func:`ids`, :func:`values`, :func:`padding`, :func:`keep` and :func:`attention`.
        outputs: made with :func:`values`, in the order in which the method returns them.
        longest: the longest length that the model takes, for each dimension that has a limit.
        empty_rows: whether the model gives a defined result for a query that may attend nowhere. PyTorch's own
            attention gives NaN. If False, every query in every case may attend to at least one position.

    Raises:
        OptionError: if an argument is wrong, or if the arguments contradict each other.
    """
    where = f"graph {name!r}"
    if not isinstance(method, str) or not method:
        raise OptionError(
            f"{where}: {method!r} is no method", "give the name of a method, or forward for the model itself"
        )
    if not NAME.fullmatch(name) or name in CACHED or len(name) > LONGEST_NAME:
        raise OptionError(
            f"{where} cannot be the name of a file here", f"letters, digits and _, but not {', '.join(CACHED)}"
        )
    if not inputs or not outputs:
        raise OptionError(f"{where} has no {'outputs' if inputs else 'inputs'}", "list them by name")
    for spec in (*inputs, *outputs):
        if not isinstance(spec, TensorSpec):
            raise OptionError(f"{where}: {spec!r} is no tensor", "make it with ids, values, padding, keep or attention")
    names = [spec.name for spec in (*inputs, *outputs)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise OptionError(f"{where} has two tensors called {twice[0]}", "each needs a name of its own")
    if strange := [name for name in names if not NAME.fullmatch(str(name))]:
        raise OptionError(f"{where}: {strange[0]!r} is no name for a tensor", "letters, digits and _")
    for spec in inputs:
        if spec.role == "values" and spec.dtype != "float32":
            raise OptionError(f"{where}: the input {spec.name} is {spec.dtype}", "inputs made with values are float32")
        _check_promises(where, spec, {other.name: other for other in inputs})
    axes = _axes_of(where, inputs, longest or {})
    for spec in outputs:
        if spec.role != "values":
            raise OptionError(f"{where}: the output {spec.name} is not made of floats", "make it with values")
        if strange := [axis.name for axis in spec.axes if isinstance(axis, Axis) and axis.name not in axes]:
            raise OptionError(
                f"{where}: {spec.name} has the dimension {strange[0]}, and no input has it", "give a number"
            )

    def bounded(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        return tuple(
            replace(spec, axes=tuple(axes[axis.name] if isinstance(axis, Axis) else axis for axis in spec.axes))
            for spec in specs
        )

    contract = Contract(name, bounded(inputs), bounded(outputs), CUSTOM_LAYOUT, empty_rows=empty_rows)
    return CustomGraph(contract, method)


def _axes_of(where: str, inputs: Sequence[TensorSpec], longest: Mapping[str, int]) -> dict[str, Axis]:
    """The dimensions that vary, by name, each with its own length at export and its longest length."""
    names = list(dict.fromkeys(axis.name for spec in inputs for axis in spec.axes if isinstance(axis, Axis)))
    if unknown := sorted(set(longest) - set(names)):
        raise OptionError(f"{where}: longest names {unknown[0]}, which is no dimension", f"choose from {names}")
    others = [name for name in names if name not in TRACED]
    if len(others) > len(OTHERS):
        raise OptionError(f"{where} has {len(others)} dimensions that vary", f"{len(OTHERS)} at most")
    traced = TRACED | dict(zip(others, OTHERS, strict=False))
    for name, most in longest.items():
        if not _is_whole(most):
            raise OptionError(f"{where}: the longest {name} is {most!r}", "give a number")
        if most < max(SHORTEST_LIMIT, traced[name] + 1):
            raise OptionError(f"{where}: {most} is too short for {name}", "write that dimension as a number")
    return {name: Axis(name, traced=traced[name], maximum=longest.get(name)) for name in names}


def _check_promises(where: str, spec: TensorSpec, inputs: Mapping[str, TensorSpec]) -> None:
    """Check that cases can test what ``hidden_by`` and ``future`` of an input promise."""
    wrong = [name for name in spec.hidden_by if name not in inputs or inputs[name].role not in PADDING]
    if spec.future not in ("", "inside") and (spec.future not in inputs or inputs[spec.future].role != "attention"):
        wrong.append(spec.future)
    if wrong:
        raise OptionError(
            f"{where}: {spec.name} names {wrong[0]}, which is no mask of that kind",
            "hidden_by takes padding masks, future an attention mask or inside",
        )
    names = {axis.name for axis in spec.axes if isinstance(axis, Axis)}
    if (spec.hidden_by or spec.future) and ("batch" not in names or len(names) < 2):
        raise OptionError(
            f"{where}: hidden_by or future of {spec.name} cannot be tried",
            "it needs a dimension called batch and a length that varies",
        )
    if any(length_axis(inputs[name]) != length_axis(spec) for name in spec.hidden_by):
        raise OptionError(
            f"{where}: {spec.name} is hidden_by {', '.join(spec.hidden_by)}, which is not of its length",
            f"name a mask that has the dimension {length_axis(spec).name}",
        )


def _padding(spec: TensorSpec) -> TensorSpec:
    varying = [axis.name for axis in spec.axes if isinstance(axis, Axis)]
    others = {size for size in spec.axes if not isinstance(size, Axis)}
    if len(varying) != 2 or len(set(varying)) != 2 or others - {1}:
        raise OptionError(
            f"{spec.name}: in {list(spec.labels)!r} nothing can be padding",
            "give two names, the batch and the length; other dimensions are 1",
        )
    return spec


def _axes(dims: Dims) -> tuple[Axis | int, ...]:
    if isinstance(dims, str) or not all(
        NAME.fullmatch(dim) if isinstance(dim, str) else _is_whole(dim) and dim > 0 for dim in dims
    ):
        raise OptionError(f"{dims!r} are no dimensions", 'give a list of names and numbers: ["batch", "source", 512]')
    return tuple(Axis(dim) if isinstance(dim, str) else dim for dim in dims)


def _is_whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number < 2**31


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(filter(None, [names])) if isinstance(names, str) else tuple(names)


def _meaning(name: str, dtype: str, meanings: Mapping[str, str]) -> str:
    if dtype not in meanings:
        raise OptionError(f"{name} cannot be a mask of {dtype}", f"choose from {', '.join(meanings)}")
    return meanings[dtype]
