"""From comparisons to a verdict: one line of the report for a file in a runtime. No torch here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..cases.case import Case, sizes_of
from ..contracts.contract import Contract, TensorSpec
from ..runtimes.runtime import Description
from .compare import EXACT, FACTOR, FAIL, NOT_JUDGED, PASS, Comparison
from .report import CaseReport, Finding, GraphReport
from .spread import together

if TYPE_CHECKING:
    from ..runtimes.run import Run


def judge(
    contract: Contract,
    run: Run,
    plan: Sequence[Case],
    results: Mapping[str, Sequence[Comparison]],
    findings: Sequence[Finding],
    *,
    format_name: str,
    checked: Sequence[str] = (),
    seconds: float = 0.0,
) -> GraphReport:
    """One line of the report out of all comparisons of a graph in a runtime, by the name of their case.

    Args:
        contract: of the graph.
        run: how it was run.
        plan: the cases that it was asked for.
        results: the comparisons of those that gave a result.
        findings: what was found before; it fails the report.
        format_name: for the report.
        checked: what was looked at besides the values.
        seconds: how long it took.
    """
    found = list(findings)
    values = "structure" if run.lifted else "rounding"
    worst_ratio, worst_case, largest, compared = 0.0, "", 0.0, 0
    notes: dict[str, str] = {}
    for case in plan:
        for comparison in results.get(case.name, ()):
            compared += comparison.elements
            if comparison.ties:
                which = ", ".join(map(str, comparison.ties))
                notes[case.name] = f"case {case.name} ({case.words}): sentence {which} has two results that tie"
            if comparison.verdict != PASS:
                check = "interface" if comparison.interface else values
                check = check if comparison.verdict == FAIL else NOT_JUDGED
                found.append(Finding(check, _words(case, comparison), case.name))
            if not comparison.ratio <= worst_ratio:
                worst_ratio, worst_case = comparison.ratio, case.words
            if not comparison.max_abs_error <= largest:
                largest = comparison.max_abs_error
    if compared == 0:
        found.append(Finding(values, "nothing was compared"))
        largest = worst_ratio = math.inf
    complete = len(results) == len(plan)
    if not complete:
        found.append(Finding("runtime", f"{len(plan) - len(results)} of {len(plan)} cases gave no result"))
    measured = [item for comparisons in results.values() for item in comparisons if item.spread]
    measured = [item for item in measured if item.own_spread] or measured
    messages = {finding.case: finding.message for finding in reversed(found)}  # of each case the first
    return GraphReport(
        graph=contract.graph,
        format=format_name,
        runtime=run.runtime,
        cases=len(results),
        compared=compared,
        max_abs_error=largest,
        worst_ratio=worst_ratio,
        worst_case=worst_case,
        passed=not found and complete,
        findings=tuple(found),
        allowed=EXACT if run.lifted else FACTOR,
        notes=tuple(notes.values()),
        details=tuple(_detail(contract, case, results.get(case.name, ()), messages) for case in plan),
        spread=together([item.spread for item in measured]),
        own_spread=together([item.own_spread for item in measured]),
        checked=tuple(checked),
        seconds=seconds,
    )


def _words(case: Case, comparison: Comparison) -> str:
    where = f" at {list(comparison.worst_index)}" if comparison.worst_index else ""
    verdict = "" if comparison.verdict == FAIL else f"{comparison.verdict}: "
    return f"case {case.name} ({case.words}), {comparison.output}{where}: {verdict}{comparison.reason}"


def _detail(
    contract: Contract, case: Case, comparisons: Sequence[Comparison], messages: Mapping[str, str]
) -> CaseReport:
    """How one case went: by the output that is the worst, a verdict before a number."""
    sizes = sizes_of(contract, case)
    if not comparisons:
        return CaseReport(case.name, case.group, case.words, sizes, message=messages.get(case.name, "gave no result"))
    order = (PASS, NOT_JUDGED, FAIL)
    worst = max(comparisons, key=lambda item: (order.index(item.verdict), item.ratio))
    return CaseReport(
        name=case.name,
        group=case.group,
        words=case.words,
        sizes=sizes,
        output=worst.output,
        max_abs_error=worst.max_abs_error,
        noise=worst.noise if math.isfinite(worst.noise) else None,
        allowed=worst.allowed if worst.allowed is not None and math.isfinite(worst.allowed) else None,
        ratio=worst.ratio,
        verdict=worst.verdict,
        message=messages.get(case.name, ""),
    )


def check_interface(contract: Contract, description: Description, *, dimensions: bool = True) -> list[Finding]:
    """Exactly the contract's tensors, with its dtypes and dimensions as far as the runtime knows them."""
    return [
        Finding("interface", message)
        for kind, specs, found in (
            ("input", contract.inputs, description.inputs),
            ("output", contract.outputs, description.outputs),
        )
        for message in _interface_problems(kind, specs, found, dimensions)
    ]


def _interface_problems(
    kind: str,
    specs: Sequence[TensorSpec],
    found: Mapping[str, tuple[str, tuple[str | int, ...]]],
    dimensions: bool,
) -> list[str]:
    names = [spec.name for spec in specs]
    problems = [f"{kind} {name} is not in the contract" for name in found if name not in names]
    if not problems and len(found) == len(names) and list(found) != names:
        problems = [f"the {kind}s stand in the order {', '.join(found)}, the contract says {', '.join(names)}"]
    for spec in specs:
        if spec.name not in found:
            problems.append(f"{kind} {spec.name} is missing from the file")
            continue
        dtype, shape = found[spec.name]
        if dtype and dtype != spec.dtype:
            problems.append(f"{kind} {spec.name} is {dtype}, the contract says {spec.dtype}")
        if dimensions and shape != spec.labels:
            problems.append(f"{kind} {spec.name} is {list(shape)}, the contract says {list(spec.labels)}")
    return problems
