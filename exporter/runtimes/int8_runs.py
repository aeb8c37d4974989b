"""How int8 files are checked: as the float32 ones, with activations rounded to 8 bits but in float64. No torch here."""

from __future__ import annotations

from dataclasses import replace

from . import onnx_runs
from .onnx_runs import check
from .run import Run

__all__ = ["check", "runs"]


def runs(verbose: bool = False) -> list[Run]:
    """The ways to run an int8 file."""
    return [replace(run, rounds=not run.lifted) for run in onnx_runs.runs(verbose)]
