"""What verification found: frozen values, JSON both ways. No torch here."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

REFERENCE = "reference "  # what the name of a runtime begins with that is another implementation of the model
EARLIER = ", when it was made"  # what it ends with where a bundle was not found to fail now
NO_RESULT = "no result"
# Of the checks, what tells most first.
CHECKS = ("place", "weights", "interface", "structure", "rounding", "runtime", "not judged")
DETAIL = ("details", "spread", "own_spread", "checked")  # what only reports need


def rank(check: str) -> int:
    """Where the findings of a check stand: what tells most first, what is not known last."""
    return CHECKS.index(check) if check in CHECKS else len(CHECKS)


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    Attributes:
        check: one of ``CHECKS``.
        message: what and where, in one line.
        case: the name of the case in which it was found; empty where it is not a matter of one.
    """

    check: str
    message: str
    case: str = ""


@dataclass(frozen=True)
class CaseReport:
    """How one graph did in one runtime in one case.

    Attributes:
        name, group, words: of the case, as in the plan.
        sizes: the length of each axis: ``batch``, ``source``, ``target`` and so on.
        output: the one that came nearest to what is allowed, or furthest beyond. The numbers are of that one.
        max_abs_error: the largest difference from the float64 reference; infinite where there is no number.
        noise: the largest error of PyTorch's own float32 runs; None where there is none to compare with.
        allowed: the largest difference that passes; likewise.
        ratio: the factor that the comparison needed.
        verdict: ``pass``, ``fail``, ``not judged`` or ``no result``.
        message: what did not pass, first of all.
    """

    name: str
    group: str
    words: str
    sizes: dict[str, int]
    output: str = ""
    max_abs_error: float = math.inf
    noise: float | None = None
    allowed: float | None = None
    ratio: float = math.inf
    verdict: str = NO_RESULT
    message: str = ""

    @property
    def passed(self) -> bool:
        """Whether it is proven."""
        return self.verdict == "pass"

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON; infinity becomes None."""
        return _finite(asdict(self))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> CaseReport:
        """The way back from :meth:`to_dict`."""
        return cls(**_infinite(values))


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
        details: how it did in each case that it was asked for.
        spread: how large the errors are of all elements, in units of what the factor 1 allows; see
            :mod:`~mytx.exporter.parity.spread`. Of the cases alone in which that is known of PyTorch, if it is of any.
        own_spread: the same of one plain float32 run of PyTorch.
        checked: what was looked at besides the values: ``weights``, ``interface``, ``runtime``.
        seconds: how long it took; not in the JSON, which is the same for the same files.
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
    details: tuple[CaseReport, ...] = ()
    spread: tuple[int, ...] = ()
    own_spread: tuple[int, ...] = ()
    checked: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def doubted(self) -> bool:
        """Whether it did not pass only because PyTorch's own float32 is too far off to judge by."""
        return not self.passed and {finding.check for finding in self.findings} == {"not judged"}

    def to_dict(self, *, details: bool = True) -> dict[str, Any]:
        """As plain values for JSON, which has no infinity: a number that is not finite becomes None.

        Args:
            details: with what is known of each case, which is much.
        """
        values = _finite(asdict(self))
        values["details"] = [case.to_dict() for case in self.details]
        del values["seconds"]
        return values if details else {name: value for name, value in values.items() if name not in DETAIL}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> GraphReport:
        """The way back from :meth:`to_dict`; None becomes infinity."""
        values = _infinite(values)
        values["findings"] = tuple(Finding(**finding) for finding in values["findings"])
        values["notes"] = tuple(values.get("notes", ()))
        values["details"] = tuple(map(CaseReport.from_dict, values.get("details", ())))
        for name in ("spread", "own_spread", "checked"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)


@dataclass(frozen=True)
class ParityReport:
    """How all graphs did. An empty report has not passed."""

    graphs: tuple[GraphReport, ...]

    @property
    def passed(self) -> bool:
        """Whether there is something, and all of it passed."""
        return bool(self.graphs) and all(graph.passed for graph in self.graphs)

    @property
    def doubted(self) -> bool:
        """Whether it did not pass only because PyTorch's own float32 is too far off to judge by."""
        return bool(self.graphs) and not self.passed and all(graph.passed or graph.doubted for graph in self.graphs)

    def to_dict(self, *, details: bool = True) -> dict[str, Any]:
        """As plain values for JSON; :meth:`from_dict` is the way back."""
        return {"passed": self.passed, "graphs": [graph.to_dict(details=details) for graph in self.graphs]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ParityReport:
        """The way back from :meth:`to_dict`."""
        return cls(tuple(GraphReport.from_dict(graph) for graph in values["graphs"]))

    def to_json(self) -> str:
        """:meth:`to_dict` as text, with each case in a line: there are thousands."""
        values = self.to_dict()
        rows: dict[str, str] = {}
        for graph in values["graphs"]:
            for name in DETAIL:
                mark = f"@{len(rows)}"
                rows[f'"{name}": "{mark}"'] = f'"{name}": {_lines(graph[name])}'
                graph[name] = mark
        text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        for mark, lines in rows.items():  # no string holds a mark: in a string its quotes would be escaped
            text = text.replace(mark, lines, 1)
        return text


def by_file(reports: Sequence[GraphReport]) -> dict[tuple[str, str], list[GraphReport]]:
    """The ways that each file was run, by its graph and format."""
    files: dict[tuple[str, str], list[GraphReport]] = {}
    for report in reports:
        files.setdefault((report.graph, report.format), []).append(report)
    return files


def shown_ratio(ratio: float) -> str:
    """In no more characters than leave a table 80 columns wide."""
    return f"{ratio:.2f}" if ratio < 1000 else f"{ratio:.0e}"


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    unbounded = ("max_abs_error", "worst_ratio", "ratio")
    return {name: None if name in unbounded and not math.isfinite(value) else value for name, value in values.items()}


def _infinite(values: dict[str, Any]) -> dict[str, Any]:
    unbounded = ("max_abs_error", "worst_ratio", "ratio")
    return {name: math.inf if name in unbounded and value is None else value for name, value in values.items()}


def _lines(values: list[Any]) -> str:
    """A list with each of its objects in a line, or all of it in one."""
    if not values or not isinstance(values[0], dict):
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    rows = (json.dumps(value, ensure_ascii=False, allow_nan=False) for value in values)
    return "[\n        " + ",\n        ".join(rows) + "\n      ]"
