"""The interface of a runtime: a program that runs a graph. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..cases.case import Array
from ..contracts.contract import Contract


@dataclass(frozen=True)
class Description:
    """A runtime and its version, and what it reports about the open graph: dtype and dimensions of each tensor."""

    runtime: str
    version: str
    inputs: dict[str, tuple[str, tuple[str | int, ...]]] = field(default_factory=dict)
    outputs: dict[str, tuple[str, tuple[str | int, ...]]] = field(default_factory=dict)


def described(contract: Contract, runtime: str, version: str) -> Description:
    """A description with the inputs and outputs of ``contract``."""
    inputs, outputs = (
        {spec.name: (spec.dtype, spec.labels) for spec in part} for part in (contract.inputs, contract.outputs)
    )
    return Description(runtime, version, inputs, outputs)


class Runtime(Protocol):
    """A graph, open in a program that runs it."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, for an array for each input."""
        ...

    def describe(self) -> Description:
        """The runtime, and what it reports about the graph."""
        ...


def run_all(runtime: Runtime, many: Sequence[Mapping[str, Array]]) -> list[dict[str, Array] | Exception]:
    """For each set of inputs the outputs, or the exception if the run failed; the others run all the same."""
    if hasattr(runtime, "run_all"):  # the runtime is faster on all of them at once
        return runtime.run_all(many)
    results: list[dict[str, Array] | Exception] = []
    for inputs in many:
        try:
            results.append(runtime.run(inputs))
        except Exception as error:
            results.append(error)
    return results
