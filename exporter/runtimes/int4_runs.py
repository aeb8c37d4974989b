"""How int4 files are checked: in onnxruntime, which alone has their operators, and in float64. No torch here.

Without any optimisation onnxruntime does not compute the fused weights beforehand, and multiplies by these in float32,
without rounding: a way that nobody deploys, and that is left out.
"""

from __future__ import annotations

from dataclasses import replace

from .onnx_runs import OPTIONS, check, in_onnxruntime, lifted
from .run import Run

__all__ = ["check", "runs"]


def runs(verbose: bool = False) -> list[Run]:
    """The ways to run an int4 file."""
    optimised = [options for options in OPTIONS if options.level != "off"]
    return [*(replace(run, rounds=True) for run in in_onnxruntime(optimised, verbose)), lifted()]
