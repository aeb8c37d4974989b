"""Matching the values of an ONNX file with the tensors of the model, by names of nodes, shapes and dtypes.

A value that the nodes of a module compute for nodes outside is an output of the module. A value that they read from
outside is an input of the module.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..cases.case import Array
from ..parity.compare import EXACT
from ..runtimes.lifting import lift
from .capture import OUTPUT, Slot, Wanted, difference
from .scopes import FileScopes


class Seen:
    """Keeps all values of a run that have at least one dimension."""

    def __init__(self, scopes: FileScopes) -> None:
        self.scopes = scopes
        self.values: dict[str, dict[int, Array]] = {}

    def before(self, node: int, inputs: Mapping[int, list[Any]]) -> None:
        """Keep the inputs of a node: this is how inputs of the graph are seen."""
        for case, arrays in inputs.items():
            self._keep(case, self.scopes.nodes[node].input, arrays)

    def after(self, node: int, outputs: Mapping[int, list[Any]]) -> None:
        """Keep the outputs of a node."""
        for case, arrays in outputs.items():
            self._keep(case, self.scopes.nodes[node].output, arrays)

    def _keep(self, case: int, names: Sequence[str], arrays: Sequence[Any]) -> None:
        for name, array in zip(names, arrays, strict=False):
            if isinstance(array, np.ndarray) and array.ndim:
                self.values.setdefault(name, {}).setdefault(case, array)


@dataclass
class Matches:
    """Values of the file that are tensors of the model.

    Attributes:
        given: outputs of modules, by the name of the value.
        taken: inputs of modules, by the number of the node that reads the value and the name of the value.
    """

    given: dict[str, list[Slot]] = field(default_factory=dict)
    taken: dict[tuple[int, str], Slot] = field(default_factory=dict)


def match(
    scopes: FileScopes,
    varying: Collection[str],
    seen: Seen,
    wanted: Sequence[Mapping[Slot, Wanted]],
    outputs: Sequence[str],
) -> Matches:
    """Match the values of the file with the tensors of the model.

    Args:
        scopes: the nodes of the file by module.
        varying: names of the values that depend on the inputs.
        seen: values of a run of the file.
        wanted: tensors of the model, for each case of that run.
        outputs: names of the graph's outputs.
    """
    matches = Matches()
    slots = dict.fromkeys(slot for tensors in wanted for slot in tensors)
    looks = _Looks(seen, wanted)
    for call in scopes.calls:
        slot = (call.module, call.number, OUTPUT)
        fitting = [name for name in scopes.leaving(call, varying) if slot in slots and looks.fit(name, slot)]
        if fitting:  # of those that fit in most cases, the last one
            best = max(fitting, key=lambda name: (looks.fit(name, slot), scopes.producer[name]))
            matches.given.setdefault(best, []).append(slot)
        own = [slot for slot in slots if slot[:2] == (call.module, call.number) and slot[2] != OUTPUT]
        for name, slot in _inputs(scopes.external(call, varying), own, looks).items():
            matches.taken.update({(number, name): slot for number in call.own})
    for name in outputs:
        matches.given.setdefault(name, []).append(("", 0, OUTPUT))
    return matches


def _inputs(names: Sequence[str], slots: Sequence[Slot], looks: _Looks) -> dict[str, Slot]:
    """Match values with inputs of a module: a value that fits exactly one of them in every case."""
    found = {}
    for name in names:
        fitting = [slot for slot in slots if looks.fit(name, slot) == looks.count(name) > 0]
        if len(fitting) == 1:
            found[name] = fitting[0]
    # A mask may have a wrong shape. If one mask is left on each side, they belong together.
    rest = [name for name in names if name not in found and looks.rank_of_mask(name)]
    left = [slot for slot in slots if slot not in found.values() and looks.rank_of_wanted_mask(slot)]
    if len(rest) == len(left) == 1 and looks.rank_of_mask(rest[0]) == looks.rank_of_wanted_mask(left[0]):
        found[rest[0]] = left[0]
    return found


class _Looks:
    """Compares values and tensors by their shapes and dtypes only."""

    def __init__(self, seen: Seen, wanted: Sequence[Mapping[Slot, Wanted]]) -> None:
        self.seen = seen.values
        self.wanted = wanted

    def count(self, name: str) -> int:
        """The number of cases in which the value was seen."""
        return len(self.seen.get(name, {}))

    def fit(self, name: str, slot: Slot) -> int:
        """The number of cases in which the value has the shape and the kind of dtype of the tensor."""
        return sum(
            array.shape == tensor.values.shape and array.dtype.kind == tensor.values.dtype.kind
            for case, array in self.seen.get(name, {}).items()
            if (tensor := self.wanted[case].get(slot))
        )

    def rank_of_mask(self, name: str) -> int:
        """The number of dimensions of a bool value; 0 for any other."""
        return next((array.ndim for array in self.seen.get(name, {}).values() if array.dtype == bool), 0)

    def rank_of_wanted_mask(self, slot: Slot) -> int:
        """The number of dimensions of a bool tensor; 0 for any other."""
        found = (tensors[slot].values for tensors in self.wanted if slot in tensors)
        return next((values.ndim for values in found if values.dtype == bool), 0)


@dataclass(frozen=True)
class Check:
    """The comparison of a value with a tensor of the model in one case."""

    slot: Slot
    value: str
    reader: int | None  # number of the node that reads it, for an input of a module
    case: int
    error: float
    allowed: float


class Forced(Seen):
    """Compares the values between modules with the model's tensors, and replaces them by the model's."""

    def __init__(self, scopes: FileScopes, matches: Matches, wanted: Sequence[Mapping[Slot, Wanted]]) -> None:
        super().__init__(scopes)
        self.matches = matches
        self.wanted = wanted
        self.checks: list[Check] = []

    def before(self, node: int, inputs: Mapping[int, list[Any]]) -> None:
        """Compare an input of a module for this module only: the same value may be right for another one."""
        super().before(node, inputs)
        for position, name in enumerate(self.scopes.nodes[node].input):
            slot = self.matches.taken.get((node, name))
            for case, arrays in inputs.items() if slot else ():
                assert slot is not None
                arrays[position] = self.check(slot, name, node, case, arrays[position])

    def after(self, node: int, outputs: Mapping[int, list[Any]]) -> None:
        """Compare an output of a module once, for all its readers."""
        super().after(node, outputs)
        for position, name in enumerate(self.scopes.nodes[node].output):
            for slot in self.matches.given.get(name, ()):
                for case, arrays in outputs.items():
                    arrays[position] = self.check(slot, name, None, case, arrays[position])

    def is_content(self, node: int) -> bool:
        """Whether a node computes floats or bools, and not only lengths and shapes, which all parts of a file share."""
        arrays = [array for name in self.scopes.nodes[node].output for array in self.values.get(name, {}).values()]
        return any(array.dtype.kind in "fb" for array in arrays)

    def check(self, slot: Slot, value: str, reader: int | None, case: int, found: Any) -> Any:
        """Compare ``found`` with the model's tensor, and return the model's tensor."""
        tensor = self.wanted[case].get(slot)
        if tensor is None:
            return found
        error, allowed = difference(lift(found), tensor.values), EXACT * tensor.allowance
        self.checks.append(Check(slot, value, reader, case, error, allowed))
        return tensor.values
