"""How ONNX files are checked: in onnxruntime as users run it, and in ``onnx.reference``. No torch here."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from ..cases.case import core, small, small_core
from .onnx_reference import OnnxReference
from .onnxruntime import OnnxRuntime, RuntimeOptions
from .run import Run

# As it comes, in every case, and then in the core of the plan on one thread and at each level of optimisation: a fault
# of the optimiser and one of the exporter look different, and some faults need two threads.
OPTIONS = (
    RuntimeOptions(),
    RuntimeOptions(threads=1),
    RuntimeOptions(level="extended"),
    RuntimeOptions(level="basic"),
    RuntimeOptions(level="off"),
)


def check(path: Path) -> None:
    """To open an ONNX file runs nothing of it: there is nothing to look for before."""


def runs(verbose: bool = False) -> list[Run]:
    """The ways to run an ONNX file; the last one, lifted to float64, is the check of structure."""
    options = [replace(options, verbose=verbose) for options in OPTIONS]
    first, *others = (Run(OnnxRuntime.label(each), partial(OnnxRuntime.open, options=each)) for each in options)
    lifted = partial(OnnxReference.open, lifted=True)
    return [
        first,
        *(replace(run, takes=core) for run in others),
        Run("onnx.reference", OnnxReference.open, takes=small_core),
        Run("onnx.reference, float64", lifted, takes=small, lifted=True),
    ]
