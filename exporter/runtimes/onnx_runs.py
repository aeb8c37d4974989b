"""How ONNX files are checked: in onnxruntime as users run it, and in ``onnx.reference``. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
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
    plain = Run("onnx.reference", OnnxReference.open, takes=small_core)
    return [*in_onnxruntime(OPTIONS, verbose), plain, lifted()]


def in_onnxruntime(options: Sequence[RuntimeOptions], verbose: bool = False) -> list[Run]:
    """Runs with each of the options: every case with the first, and with the others the core of the plan."""
    every = [replace(each, verbose=verbose) for each in options]
    first, *others = (Run(OnnxRuntime.label(each), partial(OnnxRuntime.open, options=each)) for each in every)
    return [first, *(replace(run, takes=core) for run in others)]


def lifted() -> Run:
    """The check of structure."""
    opened = partial(OnnxReference.open, lifted=True)
    return Run("onnx.reference, float64", opened, takes=small, lifted=True)
