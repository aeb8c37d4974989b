"""Verification of saved files: weights, interface, rounding. No torch here: references come ready."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .compare import FACTOR, FAIL, NOT_JUDGED, PASS, Comparison, Expected, compare_case
from .contract import Contract, TensorSpec
from .memory import release_memory
from .plan import Array, Case
from .report import Finding, GraphReport
from .runtimes import Description, OnnxRuntime, RuntimeOptions
from .weights import check_weights

# What users run, and the graph without fusions: a fault of the optimiser and one of the exporter look different.
LEVELS = ("all", "basic")

# The largest of five errors is sometimes small by luck: of 1.4 million honest comparisons 1 in 70,000 was more than
# four times that far off. So a few cases that are not far off have their noise measured once more, by more runs.
DOUBTFUL_CASES = 3
DOUBTFUL_RATIO = 4 * FACTOR


def verify_onnx(
    path: Path,
    contract: Contract,
    plan: Sequence[Case],
    expected: Sequence[Mapping[str, Expected]],
    weights: Mapping[str, Array] | None = None,
    *,
    found: Sequence[Finding] = (),
    measure: Callable[[int], Mapping[str, Expected]] | None = None,
    verbose: bool = False,
) -> list[GraphReport]:
    """Verify one ONNX file in onnxruntime, at each optimisation level of :data:`LEVELS`.

    Args:
        path: the file.
        contract: what it should be.
        plan: the cases to run.
        expected: the reference for each case.
        weights: what the file must hold, by state-dict name; None leaves that unchecked.
        found: what was found wrong before, by :func:`find_weights` say, which needs memory that references take.
        measure: takes the number of a case and gives its reference with the noise measured by more runs; called for
            a case that fails by little.
        verbose: let onnxruntime's own messages through.
    """
    expected = list(expected)
    problems = [*found, *([] if weights is None else find_weights(path, weights))]
    reports = []
    for level in LEVELS:
        options = RuntimeOptions(level=level, verbose=verbose)
        try:
            runtime = OnnxRuntime.open(path, options)
        except Exception as error:
            message = f"onnxruntime cannot load {path.name}: {' '.join(str(error).split())}"
            name = OnnxRuntime.label(options)
            reports.append(judge(contract, name, plan, {}, [*problems, Finding("runtime", message)]))
            continue
        description = runtime.describe()
        findings = [*problems, *check_interface(contract, description)]
        # Run everything first, then judge: one failure must not hide the next.
        results: dict[str, list[Comparison]] = {}
        for case, reference in zip(plan, expected, strict=True):
            try:
                results[case.name] = compare_case(contract, case, runtime.run(case.inputs), reference)
            except Exception as error:
                message = f"case {case.name} ({case.words}): {' '.join(str(error).split())}"
                findings.append(Finding("runtime", message))
        if measure is not None:
            for index in _doubtful(plan, results):
                expected[index] = measure(index)
                outputs = runtime.run(plan[index].inputs)
                results[plan[index].name] = compare_case(contract, plan[index], outputs, expected[index])
        reports.append(judge(contract, description.runtime, plan, results, findings))
        del runtime
        release_memory()
    return reports


def _doubtful(plan: Sequence[Case], results: Mapping[str, Sequence[Comparison]]) -> list[int]:
    """The cases that failed, if they are few and none is far off: a real fault shows in more, or by more."""
    failed = [
        (index, comparison.ratio)
        for index, case in enumerate(plan)
        for comparison in results.get(case.name, ())
        if comparison.verdict == FAIL
    ]
    few = len(failed) <= DOUBTFUL_CASES and all(ratio <= DOUBTFUL_RATIO for _, ratio in failed)
    return sorted({index for index, _ in failed}) if few else []


def judge(
    contract: Contract,
    runtime: str,
    plan: Sequence[Case],
    results: Mapping[str, Sequence[Comparison]],
    findings: Sequence[Finding],
    *,
    format_name: str = "onnx",
) -> GraphReport:
    """One line of the report out of all comparisons of a graph in a runtime, by the name of their case."""
    found = list(findings)
    worst_ratio, worst_case, largest, compared = 0.0, "", 0.0, 0
    for case in plan:
        for comparison in results.get(case.name, ()):
            compared += comparison.elements
            if comparison.verdict != PASS:
                where = f" at {list(comparison.worst_index)}" if comparison.worst_index else ""
                verdict = "" if comparison.verdict == FAIL else f"{comparison.verdict}: "
                text = f"case {case.name} ({case.words}), {comparison.output}{where}: {verdict}{comparison.reason}"
                found.append(Finding("rounding" if comparison.verdict == FAIL else NOT_JUDGED, text))
            if not comparison.ratio <= worst_ratio:
                worst_ratio, worst_case = comparison.ratio, case.words
            if not comparison.max_abs_error <= largest:
                largest = comparison.max_abs_error
    if compared == 0:
        found.append(Finding("rounding", "nothing was compared"))
        largest = worst_ratio = math.inf
    complete = len(results) == len(plan)
    if not complete:
        found.append(Finding("runtime", f"{len(plan) - len(results)} of {len(plan)} cases gave no result"))
    return GraphReport(
        graph=contract.graph,
        format=format_name,
        runtime=runtime,
        cases=len(results),
        compared=compared,
        max_abs_error=largest,
        worst_ratio=worst_ratio,
        worst_case=worst_case,
        passed=not found and complete,
        findings=tuple(found),
    )


def find_weights(path: Path, weights: Mapping[str, Array]) -> list[Finding]:
    """What is wrong with the weights of the file: check 1."""
    try:
        return [Finding("weights", message) for message in check_weights(path, weights)]
    except Exception as error:  # a file that is damaged, or whose weights are in another that is missing
        return [Finding("weights", f"{path.name} cannot be read: {' '.join(str(error).split())}")]


def check_interface(contract: Contract, description: Description) -> list[Finding]:
    """Exactly the contract's tensors, with its dtypes and dimensions."""
    return [
        Finding("interface", message)
        for kind, specs, found in (
            ("input", contract.inputs, description.inputs),
            ("output", contract.outputs, description.outputs),
        )
        for message in _interface_problems(kind, specs, found)
    ]


def _interface_problems(
    kind: str, specs: Sequence[TensorSpec], found: Mapping[str, tuple[str, tuple[str | int, ...]]]
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
        if dtype != spec.dtype:
            problems.append(f"{kind} {spec.name} is {dtype}, the contract says {spec.dtype}")
        if shape != spec.labels:
            problems.append(f"{kind} {spec.name} is {list(shape)}, the contract says {list(spec.labels)}")
    return problems
