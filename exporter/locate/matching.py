"""Which value of an ONNX file is which tensor of the model: by the names of the nodes, and by shape and dtype.

What leaves the nodes of a module is what the module gives; what comes to them from outside is what it takes.
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
    """Keeps all values that are not single numbers."""

    def __init__(self, scopes: FileScopes) -> None:
        self.scopes = scopes
        self.values: dict[str, dict[int, Array]] = {}

    def before(self, node: int, inputs: Mapping[int, list[Any]]) -> None:
        """Inputs of the graph are seen where they are read."""
        for case, arrays in inputs.items():
            self._keep(case, self.scopes.nodes[node].input, arrays)

    def after(self, node: int, outputs: Mapping[int, list[Any]]) -> None:
        """All others where they are made."""
        for case, arrays in outputs.items():
            self._keep(case, self.scopes.nodes[node].output, arrays)

    def _keep(self, case: int, names: Sequence[str], arrays: Sequence[Any]) -> None:
        for name, array in zip(names, arrays, strict=False):
            if isinstance(array, np.ndarray) and array.ndim:
                self.values.setdefault(name, {}).setdefault(case, array)


@dataclass
class Matches:
    """Where a value of the file is a tensor of the model.

    Attributes:
        given: what a module gives, by the value's name.
        taken: what a module takes, by the number of the node that reads it and the value's name.
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
    """Match what was seen in a run, ``seen``, with what the model has, ``wanted``, for each case.

    Args:
        scopes: of the file.
        varying: the values that depend on the inputs.
        seen: a run of the file.
        wanted: the model's tensors, for each case of that run.
        outputs: the names of the graph's outputs.
    """
    matches = Matches()
    slots = dict.fromkeys(slot for tensors in wanted for slot in tensors)
    looks = _Looks(seen, wanted)
    for call in scopes.calls:
        slot = (call.module, call.number, OUTPUT)
        fitting = [name for name in scopes.leaving(call, varying) if slot in slots and looks.fit(name, slot)]
        if fitting:  # the last of those that fit in most cases
            best = max(fitting, key=lambda name: (looks.fit(name, slot), scopes.producer[name]))
            matches.given.setdefault(best, []).append(slot)
        own = [slot for slot in slots if slot[:2] == (call.module, call.number) and slot[2] != OUTPUT]
        for name, slot in _inputs(scopes.external(call, varying), own, looks).items():
            matches.taken.update({(number, name): slot for number in call.own})
    for name in outputs:
        matches.given.setdefault(name, []).append(("", 0, OUTPUT))
    return matches


def _inputs(names: Sequence[str], slots: Sequence[Slot], looks: _Looks) -> dict[str, Slot]:
    """Which of the module's inputs the values are: those that look like one and only one of them in every case."""
    found = {}
    for name in names:
        fitting = [slot for slot in slots if looks.fit(name, slot) == looks.count(name) > 0]
        if len(fitting) == 1:
            found[name] = fitting[0]
    # A mask of a wrong shape: where one mask is left over on each side, they belong together.
    rest = [name for name in names if name not in found and looks.rank_of_mask(name)]
    left = [slot for slot in slots if slot not in found.values() and looks.rank_of_wanted_mask(slot)]
    if len(rest) == len(left) == 1 and looks.rank_of_mask(rest[0]) == looks.rank_of_wanted_mask(left[0]):
        found[rest[0]] = left[0]
    return found


class _Looks:
    """What can be told of values and tensors by their shapes and dtypes alone."""

    def __init__(self, seen: Seen, wanted: Sequence[Mapping[Slot, Wanted]]) -> None:
        self.seen = seen.values
        self.wanted = wanted

    def count(self, name: str) -> int:
        """In how many cases the value was seen."""
        return len(self.seen.get(name, {}))

    def fit(self, name: str, slot: Slot) -> int:
        """In how many cases the value looks like the tensor."""
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
    """How a value compares with a tensor of the model in one case."""

    slot: Slot
    value: str
    reader: int | None  # the node that reads it, where what it reads is compared
    case: int
    error: float
    allowed: float


class Forced(Seen):
    """Compares what goes from module to module with the model's, and puts the model's in its place."""

    def __init__(self, scopes: FileScopes, matches: Matches, wanted: Sequence[Mapping[Slot, Wanted]]) -> None:
        super().__init__(scopes)
        self.matches = matches
        self.wanted = wanted
        self.checks: list[Check] = []

    def before(self, node: int, inputs: Mapping[int, list[Any]]) -> None:
        """What a module takes is compared for it alone: the same value may be right elsewhere."""
        super().before(node, inputs)
        for position, name in enumerate(self.scopes.nodes[node].input):
            slot = self.matches.taken.get((node, name))
            for case, arrays in inputs.items() if slot else ():
                assert slot is not None
                arrays[position] = self.check(slot, name, node, case, arrays[position])

    def after(self, node: int, outputs: Mapping[int, list[Any]]) -> None:
        """What a module gives is compared once, for all."""
        super().after(node, outputs)
        for position, name in enumerate(self.scopes.nodes[node].output):
            for slot in self.matches.given.get(name, ()):
                for case, arrays in outputs.items():
                    arrays[position] = self.check(slot, name, None, case, arrays[position])

    def is_content(self, node: int) -> bool:
        """Whether a node gives more than lengths and shapes, which all parts of a file share."""
        arrays = [array for name in self.scopes.nodes[node].output for array in self.values.get(name, {}).values()]
        return any(array.dtype.kind in "fb" for array in arrays)

    def check(self, slot: Slot, value: str, reader: int | None, case: int, found: Any) -> Any:
        """Compare; returns what the model has."""
        tensor = self.wanted[case].get(slot)
        if tensor is None:
            return found
        error, allowed = difference(lift(found), tensor.values), EXACT * tensor.allowance
        self.checks.append(Check(slot, value, reader, case, error, allowed))
        return tensor.values
