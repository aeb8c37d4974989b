"""Contracts for models of one's own, in a few words; :mod:`mytx.exporter.contracts` says how they are used."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import OptionError
from .contract import (
    ATTENTION_MEANING,
    CACHED,
    CUSTOM,
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
# At export no two lengths may be equal, nor any length a number of the model's.
TRACED = {"batch": 2, "source": 7, "target": 5}
OTHERS = (11, 13, 17, 19, 23, 29)
OUTPUTS = ("float32", "int64", "bool")  # dtypes
LONGEST_NAME = 100  # of a graph: it is a file's, with more behind it
SHORTEST_LIMIT = 8  # below it there is no length for each dimension at export


@dataclass(frozen=True)
class CustomGraph:
    """A graph of a model that is not ours.

    Attributes:
        contract: what it takes and gives.
        method: of the model, or a submodule's name; ``forward`` is the model itself.
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
        name: of the argument.
        dims: names and numbers.
        below: the size of the vocabulary.
        pad: the id that the model itself takes for padding, if it does: then the plan has it where padding is.
        hidden_by: padding masks that hide it: where all say padding, what stands there must change nothing.
        future: ``inside`` where no output may depend on later positions; or the attention mask that sees to it.
    """
    if not _is_whole(below) or below < 2:
        raise OptionError(f"{name}: ids below {below!r} are none", "below is the size of the vocabulary, 2 or more")
    if pad is not None and pad not in range(below):
        raise OptionError(f"{name}: pad {pad!r} is no id below {below}", "leave it out where the model looks at none")
    if not dims:
        raise OptionError(f"{name} has no dimensions", "give those of the ids, a length at least")
    meaning = f"ids, 0 to {below - 1}"
    spec = TensorSpec(name, "int64", _axes(dims), meaning, "ids", below, hidden_by=_names(hidden_by), future=future)
    return spec if pad is None else _padding(replace(spec, pad=pad))


def values(
    name: str, dims: Dims, dtype: str = "float32", *, hidden_by: str | Sequence[str] = (), future: str = ""
) -> TensorSpec:
    """An input of floats, or an output, which may also be ``int64`` or ``bool``; see :func:`ids`."""
    if dtype not in OUTPUTS:
        raise OptionError(f"{name} cannot be {dtype}", f"choose from {', '.join(OUTPUTS)}")
    return TensorSpec(name, dtype, _axes(dims), hidden_by=_names(hidden_by), future=future)


def padding(name: str, dims: Dims, dtype: str = "bool") -> TensorSpec:
    """A padding mask, ``bool`` (True = padding) or ``float32`` (added to the scores, -inf = padding)."""
    return _padding(TensorSpec(name, dtype, _axes(dims), _meaning(name, dtype, PADDING_MEANING), "padding"))


def keep(name: str, dims: Dims, dtype: str = "int64") -> TensorSpec:
    """A padding mask upside down: 1 = a real position, 0 = padding; ``int64``, ``bool`` or ``float32``."""
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
        name: of the file.
        method: of the model, or a submodule's name; ``forward`` is the model itself.
        inputs: made with :func:`ids`, :func:`values`, :func:`padding`, :func:`keep` and :func:`attention`.
        outputs: made with :func:`values`, in the order in which the method gives them.
        longest: by dimension, the longest length that the model takes.
        empty_rows: whether a query that may attend nowhere has a right result. PyTorch's own attention gives NaN
            there; without it the first position is open in every mask that is tried.

    Raises:
        OptionError: where that is no contract.
    """
    where = f"graph {name!r}"
    if not isinstance(method, str) or not method:
        raise OptionError(f"{where}: {method!r} is no method", "give its name, or forward for the model itself")
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
            raise OptionError(f"{where}: the input {spec.name} is {spec.dtype}", "values that go in are float32")
        _check_promises(where, spec, {other.name: other for other in inputs})
    axes = _bounded(where, inputs, longest or {})
    for spec in outputs:
        if spec.role != "values":
            raise OptionError(f"{where}: the output {spec.name} is not made of floats", "make it with values")
        if strange := [axis.name for axis in spec.axes if isinstance(axis, Axis) and axis.name not in axes]:
            raise OptionError(
                f"{where}: {spec.name} has the dimension {strange[0]}, and no input has it", "give a number"
            )

    def settled(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        return tuple(
            replace(spec, axes=tuple(axes[axis.name] if isinstance(axis, Axis) else axis for axis in spec.axes))
            for spec in specs
        )

    contract = Contract(name, settled(inputs), settled(outputs), CUSTOM, empty_rows=empty_rows)
    return CustomGraph(contract, method)


def _bounded(where: str, inputs: Sequence[TensorSpec], longest: Mapping[str, int]) -> dict[str, Axis]:
    """The dimensions that vary, each with a length of its own at export."""
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
            raise OptionError(f"{where}: {most} is too short for {name}", "make it a number instead of a dimension")
    return {name: Axis(name, traced=traced[name], maximum=longest.get(name)) for name in names}


def _check_promises(where: str, spec: TensorSpec, inputs: Mapping[str, TensorSpec]) -> None:
    """What is promised must be something that can be tried."""
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
            f"{where}: what {spec.name} promises cannot be tried", "it needs a dimension called batch, and a length"
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
            "what pads has a batch and a length, and else only 1",
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
