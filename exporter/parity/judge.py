"""From comparisons to a verdict: one row of the report, for a file in a runtime. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..cases.case import Case, sizes_of
from ..contracts.contract import Contract, TensorSpec
from ..runtimes.run import Run
from ..runtimes.runtime import Description
from .compare import EXACT, FACTOR, FAIL, NOT_JUDGED, PASS, Comparison
from .report import CaseReport, Finding, GraphReport
from .spread import add_spreads


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
    """One row of the report, from all comparisons of a graph in a runtime.

    Args:
        contract: contract of the graph.
        run: the way it was run.
        plan: the cases that it should run.
        results: by the name of the case, the comparisons of each case that gave a result.
        findings: earlier findings; if there are any, the row has not passed.
        format_name: name of the file's format.
        checked: names of the checks that were made besides the comparison of values.
        seconds: duration of the run.
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
    # Both spreads must be over the same cases: those where PyTorch's own is known, if it is for any.
    measured = [item for comparisons in results.values() for item in comparisons if item.spread]
    measured = [item for item in measured if item.own_spread] or measured
    messages = {finding.case: finding.message for finding in reversed(found)}  # for each case the first finding
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
        spread=add_spreads([item.spread for item in measured]),
        own_spread=add_spreads([item.own_spread for item in measured]),
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
    """The report of one case, from its worst output: the worst verdict, then the largest ratio."""
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
    """Findings where a description differs from the contract: names, their order, dtypes, dimensions.

    Args:
        contract: contract of the graph.
        description: the runtime's description of the file.
        dimensions: whether the runtime describes dimensions by their names.
    """
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
