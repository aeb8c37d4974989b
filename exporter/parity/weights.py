"""Check 1: every weight is in the file, bit for bit, with its state-dict name. Imports no torch for ONNX files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..cases.case import Array
from ..formats.table import FORMATS
from .onnx_weights import check_weights
from .report import Finding


def find_weights(format_name: str, path: Path, weights: Mapping[str, Array], *, others: bool = False) -> list[Finding]:
    """Check 1: problems with the weights of the file at ``path``.

    A file that cannot be read is a problem too: it may be damaged, or the file with its weights may be missing.

    Args:
        format_name: format of the file.
        path: the file.
        weights: the weights that it must contain, by name.
        others: as for :func:`check_weights`.
    """
    try:
        if FORMATS[format_name].precision:
            problems = check_weights(path, weights, others=others)
        else:
            from .torch_weights import PROBLEMS

            problems = PROBLEMS[format_name](path, weights)
    except Exception as error:  # a damaged file can make its reader raise anything
        problems = [f"{path.name} cannot be read: {' '.join(str(error).split())}"]
    return [Finding("weights", problem) for problem in problems]
