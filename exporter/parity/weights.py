"""Check 1: every weight is in the file, bit for bit, under its state-dict name. No torch here but for its own files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ..cases.case import Array
from .onnx_weights import check_weights
from .report import Finding


def find_weights(format_name: str, path: Path, weights: Mapping[str, Array], *, others: bool = False) -> list[Finding]:
    """What is wrong with the weights of the file at ``path``: check 1.

    Args:
        format_name: of the file.
        path: the file.
        weights: what it must hold, by name.
        others: as for :func:`check_weights`.
    """

    def look() -> list[str]:
        if format_name == "onnx":
            return check_weights(path, weights, others=others)
        from .torch_weights import PROBLEMS

        return PROBLEMS[format_name](path, weights)

    return weight_findings(path, look)


def weight_findings(path: Path, look: Callable[[], list[str]]) -> list[Finding]:
    """What ``look`` says is wrong with the weights of the file at ``path``, for the report.

    A file that cannot be read, being damaged or without the one that its weights are in, is wrong, too.
    """
    try:
        problems = look()
    except Exception as error:  # what a damaged file makes of its reader is not to be foreseen
        problems = [f"{path.name} cannot be read: {' '.join(str(error).split())}"]
    return [Finding("weights", problem) for problem in problems]
