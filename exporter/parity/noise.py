"""The references of a plan, with the noise of each case measured as far as its verdict needs it.

Of most cases one float32 run of PyTorch is enough: its error is a noise that was really measured, and more runs can
only make it larger. So what passes by one run passes by five. What does not pass has its noise measured in full before
it fails, and where five runs leave it open, once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from torch import nn

from ..cases.case import Case
from ..graphs.graph import Graph
from .compare import Expected, rounded_otherwise
from .reference import compute_references, measure_more
from .search_reference import measure_search, search_references
from .stored import BUNDLE_LIMIT, StoredCases, choose, size_of, store

References = list[dict[str, Expected]]


class Compute(Protocol):
    """:func:`compute_references` or :func:`search_references`."""

    def __call__(
        self, model: nn.Module, graph: Graph, plan: Sequence[Case], moved: Callable[[Case], bool] = ...
    ) -> References:
        """The references; the noise in full of those that are ``moved``."""
        ...


More = Callable[[nn.Module, Graph, Sequence[Case], References, int], dict[str, Expected]]
PLAIN: tuple[Compute, More] = (compute_references, measure_more)
SEARCH: tuple[Compute, More] = (search_references, measure_search)


def storable(plan: Sequence[Case]) -> list[int]:
    """The numbers of the cases that may be stored with a bundle.

    They are the user's own cases, those with numbers out of range and, where they are small, the core of the plan, the
    disturbed cases, those that identities are made of, and the identities.
    """
    named = {case.same_as.case for case in plan if case.same_as is not None}
    return [
        number
        for number, case in enumerate(plan)
        if case.group in ("own", "range")  # a user's own case may be out of range
        or case.same_as is not None
        or (case.small and case.group != "steps" and (case.core or case.group == "disturbed" or number in named))
    ]


class Noise:
    """References of a graph in the cases of a plan.

    The noise of those cases that are stored with a bundle is measured in full at once: without PyTorch it cannot be.

    Args:
        model: in float32 and evaluation mode.
        graph: of ``model``.
        plan: the cases.
        room: for the stored cases, in bytes.
        other: of ``model`` too, with some activations rounded to the other side, if any are rounded. Where five runs
            leave it open, or have stored what nobody can measure later, its noise counts.

    Attributes:
        references: for each case; replaced where the noise is measured again.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: Graph,
        plan: Sequence[Case],
        room: int = BUNDLE_LIMIT,
        other: Graph | None = None,
    ) -> None:
        self.model = model
        self.graph = graph
        self.other = other
        self.plan: Sequence[Case] = plan
        self._compute, self._more = SEARCH if graph.contract.searches else PLAIN
        candidates = storable(plan)
        sizes = [size_of(graph.contract, plan[number]) for number in candidates]
        self._kept = [candidates[at] for at in choose([plan[number] for number in candidates], sizes, room)]
        self._settled = set(map(self._own, self._kept))
        names = {plan[number].name for number in self._settled}
        self.references = self._compute(model, graph, plan, moved=lambda case: case.name in names)

    def settle(self, numbers: Iterable[int]) -> Mapping[int, Mapping[str, Expected]]:
        """Measure the noise of cases in full.

        Args:
            numbers: of the cases.

        Returns:
            The new references, of those cases of which that was not known before.
        """
        left = sorted({self._own(number) for number in numbers} - self._settled)
        if not left:
            return {}
        self._settled.update(left)
        measured = self._compute(self.model, self.graph, [self.plan[number] for number in left])
        for number, outputs in zip(left, measured, strict=True):
            self.references[number] = outputs
        return {number: self.references[number] for number in left}

    def more(self, number: int) -> Mapping[str, Expected]:
        """Measure the noise of a case by more runs; returns its new reference."""
        if self.other is None:
            return self._more(self.model, self.graph, self.plan, self.references, number)
        self.references[number] = rounded_otherwise(self._with_other([number])[0])
        return self.references[number]

    def stored(self) -> StoredCases:
        """What is stored with a bundle."""
        plan = [self.plan[number] for number in self._kept]
        return store(plan, self._with_other(self._kept) if self.other else [self.references[at] for at in self._kept])

    def _with_other(self, numbers: Sequence[int]) -> list[dict[str, Expected]]:
        """The references of cases, with the noise and the ties of the other graph."""
        assert self.other is not None
        found = self._compute(self.model, self.other, [self.plan[number] for number in numbers])
        return [
            {
                name: replace(expected, other=(more[name].noise, more[name].ties))
                for name, expected in self.references[number].items()
            }
            for number, more in zip(numbers, found, strict=True)
        ]

    def _own(self, number: int) -> int:
        """The case whose noise it is: an identity has that of another, which is known at once."""
        same = self.plan[number].same_as
        return number if same is None else same.case
