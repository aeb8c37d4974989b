"""Reports made by hand, without running a file."""

from __future__ import annotations

import math
from typing import Any

from mytx.exporter.bundle.manifest import FileEntry, Manifest
from mytx.exporter.parity.report import CaseReport, Finding, GraphReport, ParityReport

GROUPS = ("shapes", "shapes", "disturbed", "identities", "steps", "own")
EVIL = '<script>alert("1")</script>\x1b[31m\x00\ud800 & \ufffe'


def case(number: int, **changes: Any) -> CaseReport:
    """A case that passed, of the size of its number."""
    sizes = {"batch": number + 1, "source": 3 * number + 1, "target": 2}
    about = {"group": GROUPS[number], "words": f"batch {number + 1}, source {3 * number + 1}", "sizes": sizes}
    numbers = {"output": "logits", "max_abs_error": 1e-7, "noise": 2e-7, "allowed": 1e-6, "ratio": 0.4}
    return CaseReport(f"{number:02d}", **{**about, **numbers, "verdict": "pass", **changes})


def row(*findings: Finding, **changes: Any) -> GraphReport:
    """How a file did in a runtime: well, but for ``findings``, in their cases."""
    failed = {finding.case: finding for finding in reversed(findings)}
    details = [
        case(number, verdict="fail", message=failed[name].message, ratio=9.0) if name in failed else case(number)
        for number, name in enumerate(f"{number:02d}" for number in range(len(GROUPS)))
    ]
    usual: dict[str, Any] = {"graph": "encoder", "format": "onnx", "runtime": "onnxruntime", "cases": len(details)}
    usual |= {"compared": 100, "max_abs_error": 1e-7, "worst_ratio": 9.0 if findings else 0.4, "worst_case": "source 4"}
    usual |= {"passed": not findings, "findings": findings, "details": tuple(details)}
    usual |= {"checked": ("weights", "runtime", "interface"), "seconds": 1.5}
    usual |= {"spread": (0,) * 10 + (60, 40) + (0,) * 8, "own_spread": (0,) * 10 + (50, 50) + (0,) * 8}
    return GraphReport(**{**usual, **changes})


def doubted() -> GraphReport:
    """A file of which nothing could be proven."""
    return row(Finding("not judged", "case 00: too noisy", "00"))


def unloadable() -> GraphReport:
    """A file that its runtime did not load."""
    details = tuple(
        CaseReport(f"{number:02d}", group, "words", {"batch": 1}, message="gave no result")
        for number, group in enumerate(GROUPS)
    )
    finding = Finding("runtime", "onnxruntime cannot load encoder.onnx: damaged")
    numbers = {"cases": 0, "compared": 0, "max_abs_error": math.inf, "worst_ratio": math.inf}
    return row(finding, details=details, spread=(), own_spread=(), checked=("weights", "runtime"), **numbers)


def lifted(*findings: Finding) -> GraphReport:
    """The same file in float64."""
    return row(*findings, runtime="onnx.reference, float64", allowed=0.1)


def report(*rows: GraphReport) -> ParityReport:
    return ParityReport(rows)


def manifest(**changes: Any) -> Manifest:
    usual: dict[str, Any] = {
        "format": 1,
        "tools": {"mytx": "0.1.0", "onnxruntime": "1.0"},
        "model": {"kind": "translation", "parameters": 1234, "weights_sha256": "ab" * 32},
        "files": (FileEntry("encoder.onnx", 10, "cd" * 32), FileEntry("parity.json", 10, "ef" * 32)),
        "graphs": {},
        "assumed": ({"name": "norm_first", "value": False, "source": "default"},),
        "parity": {},
    }
    return Manifest(**{**usual, **changes})
