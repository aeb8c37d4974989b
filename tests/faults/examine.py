"""One planted fault before the verifier, and before two other rules."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from exported_models import Exported
from fault import Fault
from mytx.exporter.cases.plan import few_cases
from mytx.exporter.errors import MytxError
from mytx.exporter.formats.table import FORMATS, PRECISIONS
from mytx.exporter.locate.places import locate
from mytx.exporter.parity.report import GraphReport
from rules import allclose_flags, torch_verify_flags
from subject import Subject


@dataclass(frozen=True)
class Verdict:
    """What came of it.

    Attributes:
        fault, kind, model, graph: of the catalogue.
        moved: how many noises of float32 it moves the float64 reference; None where the plan is at fault.
        caught: whether any report failed.
        checks: those that found it.
        messages: what they said.
        named: whether a report or ``locate`` names the place; None where the fault has none.
        torch_verify, allclose: whether the other rules find it; None where they are not asked.
        seconds: for the verifier alone.
    """

    fault: str
    kind: str
    model: str
    graph: str
    moved: float | None
    caught: bool
    checks: tuple[str, ...]
    messages: tuple[str, ...]
    named: bool | None
    torch_verify: bool | None
    allclose: bool | None
    seconds: float


def examine(
    fault: Fault, exported: Exported, folder: Path, *, others: bool = True, enough: float = math.inf
) -> Verdict:
    """Plant ``fault`` in an honest export of its model, in ``folder``, and see who finds it.

    With ``others`` also the other rules. How far the fault moves the reference is told exactly up to ``enough``.
    """
    subject = Subject(exported, fault.graph, folder, FORMATS[PRECISIONS[fault.precision]])
    fault.plant(subject)
    start = time.perf_counter()
    reports, messages = [], []
    try:
        reports = subject.verify()
    except Exception as error:  # a bug of the verifier: it has caught nothing, and the exam goes on
        messages = [f"the verifier raised {type(error).__name__}: {error}"]
    seconds = time.perf_counter() - start
    findings = [finding for report in reports for finding in report.findings]
    open_first = partial(subject.runs[0].open, subject.path)
    graph = subject.reference or subject.honest_graph
    return Verdict(
        fault=fault.name,
        kind=fault.kind,
        model=fault.model,
        graph=fault.graph,
        moved=None if fault.kind == "plan" else subject.moved(enough),
        caught=any(not report.passed for report in reports),
        checks=tuple(sorted({finding.check for finding in findings})),
        messages=(*messages, *dict.fromkeys(finding.message for finding in findings)),
        named=None if fault.place is None else fault.place in places(subject, reports),
        torch_verify=torch_verify_flags(open_first, graph) if others and fault.others else None,
        allclose=allclose_flags(open_first, graph) if others and fault.others else None,
        seconds=seconds,
    )


def places(subject: Subject, reports: list[GraphReport]) -> set[str]:
    """The modules that the reports name: of the weights that are wrong, and where the file leaves the model first."""
    messages = [found.message for report in reports for found in report.findings if found.check == "weights"]
    modules = {name.rpartition(".")[0] for name in subject.exported.weights(subject.graph)}
    named = {module for module in modules for message in messages if message.startswith(f"{module}.")}
    try:
        located = locate(subject.path, subject.honest_graph, few_cases(subject.plan))
    except MytxError:
        return named
    return named | {place.module for place in located.introduced[:1]}


def in_words(moved: float | None) -> str:
    if moved is None:
        return "-"
    return "no number" if math.isinf(moved) else f"{moved:.2g}"
