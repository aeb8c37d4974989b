"""The parity report: frozen dataclasses that are written to JSON and read from it. Imports no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .task_report import TaskReport

REFERENCE = "reference "  # begins the runtime's name if that is another implementation of the model
EARLIER = ", when it was made"  # ends the runtime's name if the row is from the export, not from the verification now
NO_RESULT = "no result"
# The checks whose findings say most about a fault come first.
CHECKS = ("place", "weights", "interface", "structure", "rounding", "runtime", "not judged")
DETAIL = ("details", "spread", "own_spread", "checked")  # fields that the summary in the manifest does not have


def rank(check: str) -> int:
    """The place of a check in :data:`CHECKS`, to sort findings; an unknown check comes last."""
    return CHECKS.index(check) if check in CHECKS else len(CHECKS)


@dataclass(frozen=True)
class Finding:
    """A fault that a check found.

    Attributes:
        check: one of ``CHECKS``.
        message: the fault and its place, in one line.
        case: name of the case in which it was found; empty if it does not depend on a case.
    """

    check: str
    message: str
    case: str = ""


@dataclass(frozen=True)
class CaseReport:
    """The result of one graph in one runtime and one case.

    Attributes:
        name, group, words: name, group and description of the case, as in the plan.
        sizes: the length of each axis: ``batch``, ``source``, ``target`` and so on.
        output: name of the worst output. The numbers below are for this one.
        max_abs_error: the largest difference from the float64 reference; infinite if no numbers could be compared.
        noise: the largest error of PyTorch's own float32 runs; None if it is not known.
        allowed: the largest difference that passes; None if it is not known.
        ratio: the smallest factor with which the output would pass.
        verdict: ``pass``, ``fail``, ``not judged`` or ``no result``.
        message: the first finding in this case.
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
        """Whether the verdict is ``pass``."""
        return self.verdict == "pass"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinity becomes None."""
        return _finite(asdict(self))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> CaseReport:
        """The report that :meth:`to_dict` wrote; None becomes infinity."""
        return cls(**_infinite(values))


@dataclass(frozen=True)
class GraphReport:
    """The result of one graph in one runtime: a row of the report.

    Attributes:
        graph, format, runtime: names of the graph, of the file's format, and of the runtime.
        cases: number of cases that gave a result.
        compared: number of output elements that were compared with the reference.
        max_abs_error: the largest difference from the float64 reference.
        worst_ratio: the smallest factor with which all cases would pass.
        worst_case: description of the case that needs this factor.
        passed: whether all cases and all checks passed.
        findings: the faults that were found.
        allowed: the factor that is allowed: 4 in float32, 0.1 for a file that was run in float64.
        notes: what was not compared although nothing is wrong: sentences with two results that are equally right.
        details: the result of each case that should run.
        spread: distribution of the errors of all elements, in units of the error that the factor 1 allows; see
            :mod:`~mytx.exporter.parity.spread`. If PyTorch's own is known for some cases, only over these.
        own_spread: the same for one plain float32 run of PyTorch.
        checked: the checks that were made besides the comparison of values: ``weights``, ``interface``, ``runtime``.
        seconds: duration; not in the JSON, which is equal for equal files.
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
        """Whether the only findings are "not judged": PyTorch's own float32 is too inaccurate to judge the file."""
        return not self.passed and {finding.check for finding in self.findings} == {"not judged"}

    def to_dict(self, *, details: bool = True) -> dict[str, Any]:
        """Plain values for JSON, which has no infinity: a number that is not finite becomes None.

        Args:
            details: include the fields in :data:`DETAIL`, which are large.
        """
        values = _finite(asdict(self))
        values["details"] = [case.to_dict() for case in self.details]
        del values["seconds"]
        return values if details else {name: value for name, value in values.items() if name not in DETAIL}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> GraphReport:
        """The row that :meth:`to_dict` wrote; None becomes infinity."""
        values = _infinite(values)
        values["findings"] = tuple(Finding(**finding) for finding in values["findings"])
        values["notes"] = tuple(values.get("notes", ()))
        values["details"] = tuple(map(CaseReport.from_dict, values.get("details", ())))
        for name in ("spread", "own_spread", "checked"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)


@dataclass(frozen=True)
class ParityReport:
    """The results of all graphs in all runtimes, and of the task. An empty report has not passed."""

    graphs: tuple[GraphReport, ...]
    task: tuple[TaskReport, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether there are rows, and all of them passed, and the task, too."""
        return bool(self.graphs) and all(graph.passed for graph in self.graphs) and all(one.passed for one in self.task)

    @property
    def doubted(self) -> bool:
        """Whether it did not pass, but only because some rows were "not judged"."""
        judged = all(graph.passed or graph.doubted for graph in self.graphs) and all(one.passed for one in self.task)
        return bool(self.graphs) and not self.passed and judged

    def to_dict(self, *, details: bool = True) -> dict[str, Any]:
        """Plain values for JSON; :meth:`from_dict` reads them."""
        graphs = [graph.to_dict(details=details) for graph in self.graphs]
        return {"passed": self.passed, "graphs": graphs, "task": [one.to_dict() for one in self.task]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ParityReport:
        """The report that :meth:`to_dict` wrote."""
        graphs = tuple(GraphReport.from_dict(graph) for graph in values["graphs"])
        return cls(graphs, tuple(TaskReport.from_dict(one) for one in values.get("task", ())))

    def to_json(self) -> str:
        """:meth:`to_dict` as JSON text, with one line for each case, because there are thousands."""
        values = self.to_dict()
        rows: dict[str, str] = {}
        for graph in values["graphs"]:
            for name in DETAIL:
                mark = f"@{len(rows)}"
                rows[f'"{name}": "{mark}"'] = f'"{name}": {_lines(graph[name])}'
                graph[name] = mark
        text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        for mark, lines in rows.items():  # a mark has quotes, which are escaped in strings: so no string contains one
            text = text.replace(mark, lines, 1)
        return text


def by_file(reports: Sequence[GraphReport]) -> dict[tuple[str, str], list[GraphReport]]:
    """The rows of each file, by its graph and format."""
    files: dict[tuple[str, str], list[GraphReport]] = {}
    for report in reports:
        files.setdefault((report.graph, report.format), []).append(report)
    return files


def shown_ratio(ratio: float) -> str:
    """A ratio in few characters, so that the table fits into 80 columns."""
    return f"{ratio:.2f}" if ratio < 1000 else f"{ratio:.0e}"


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    unbounded = ("max_abs_error", "worst_ratio", "ratio")
    return {name: None if name in unbounded and not math.isfinite(value) else value for name, value in values.items()}


def _infinite(values: dict[str, Any]) -> dict[str, Any]:
    unbounded = ("max_abs_error", "worst_ratio", "ratio")
    return {name: math.inf if name in unbounded and value is None else value for name, value in values.items()}


def _lines(values: list[Any]) -> str:
    """A list as JSON: one line for each object, or one line for a list of numbers or strings."""
    if not values or not isinstance(values[0], dict):
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    rows = (json.dumps(value, ensure_ascii=False, allow_nan=False) for value in values)
    return "[\n        " + ",\n        ".join(rows) + "\n      ]"
