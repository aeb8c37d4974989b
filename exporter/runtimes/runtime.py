"""Things that can run a graph. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..cases.case import Array
from ..contracts.contract import Contract


@dataclass(frozen=True)
class Description:
    """What a runtime says of the graph that it has open: for each tensor its dtype and dimensions."""

    runtime: str
    version: str
    inputs: dict[str, tuple[str, tuple[str | int, ...]]] = field(default_factory=dict)
    outputs: dict[str, tuple[str, tuple[str | int, ...]]] = field(default_factory=dict)


def described(contract: Contract, runtime: str, version: str) -> Description:
    """The description of a runtime that takes and gives what ``contract`` says."""
    inputs, outputs = (
        {spec.name: (spec.dtype, spec.labels) for spec in part} for part in (contract.inputs, contract.outputs)
    )
    return Description(runtime, version, inputs, outputs)


class Runtime(Protocol):
    """A graph, open in something that runs it."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, for an array for each input."""
        ...

    def describe(self) -> Description:
        """The runtime, and what it says of the graph."""
        ...


def run_all(runtime: Runtime, many: Sequence[Mapping[str, Array]]) -> list[dict[str, Array] | Exception]:
    """The outputs for each set of inputs, or what was raised instead: one that fails does not stop the others."""
    if hasattr(runtime, "run_all"):  # faster all at once
        return runtime.run_all(many)
    results: list[dict[str, Array] | Exception] = []
    for inputs in many:
        try:
            results.append(runtime.run(inputs))
        except Exception as error:
            results.append(error)
    return results
