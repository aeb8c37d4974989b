"""What verification found: frozen values, JSON both ways. No torch here."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

REFERENCE = "reference "  # what the name of a runtime begins with that is another implementation of the model


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    Attributes:
        check: ``weights``, ``interface``, ``structure``, ``rounding``, ``not judged``, ``runtime`` or ``place``.
        message: what and where, in one line.
    """

    check: str
    message: str


@dataclass(frozen=True)
class GraphReport:
    """How one graph did in one runtime.

    Attributes:
        graph, format, runtime: which file, and what ran it.
        cases: how many cases were run.
        compared: how many output elements were held against the reference.
        max_abs_error: the largest difference from the float64 reference.
        worst_ratio: the largest factor that a comparison needed.
        worst_case: the case that needed it, in words.
        passed: whether every case and every check passed.
        findings: what did not.
        allowed: the factor that a comparison may need: 4 for float32, 0.1 for a file that was run in float64.
        notes: what was not compared, though nothing is wrong: sentences with two results that are both right.
    """

    graph: str
    format: str
    runtime: str
    cases: int
    compared: int
    max_abs_error: float
    worst_ratio: float
    worst_case: str
    passed: bool
    findings: tuple[Finding, ...] = ()
    allowed: float = 4.0
    notes: tuple[str, ...] = ()

    @property
    def doubted(self) -> bool:
        """Whether it did not pass only because PyTorch's own float32 is too far off to judge by."""
        return not self.passed and {finding.check for finding in self.findings} == {"not judged"}

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON, which has no infinity: a number that is not finite becomes None."""
        values = asdict(self)
        for name in ("max_abs_error", "worst_ratio"):
            values[name] = values[name] if math.isfinite(values[name]) else None
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> GraphReport:
        """The way back from :meth:`to_dict`; None becomes infinity."""
        values = dict(values)
        for name in ("max_abs_error", "worst_ratio"):
            values[name] = math.inf if values[name] is None else values[name]
        values["findings"] = tuple(Finding(**finding) for finding in values["findings"])
        values["notes"] = tuple(values.get("notes", ()))
        return cls(**values)


@dataclass(frozen=True)
class ParityReport:
    """How all graphs did. An empty report has not passed."""

    graphs: tuple[GraphReport, ...]

    @property
    def passed(self) -> bool:
        """Whether there is something, and all of it passed."""
        return bool(self.graphs) and all(graph.passed for graph in self.graphs)

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON; :meth:`from_dict` is the way back."""
        return {"passed": self.passed, "graphs": [graph.to_dict() for graph in self.graphs]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ParityReport:
        """The way back from :meth:`to_dict`."""
        return cls(tuple(GraphReport.from_dict(graph) for graph in values["graphs"]))
