"""How ONNX files are checked: in onnxruntime as users run it, and in ``onnx.reference``. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from .onnx_reference import OnnxReference
from .plan import Array, Case
from .report import Finding
from .runtimes import OnnxRuntime, RuntimeOptions
from .verify import Run, small, small_shape
from .weights import check_weights

# As it comes, and then on one thread and at each level of optimisation: a fault of the optimiser and one of the
# exporter look different, and some faults need two threads.
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
    found = []
    for number, options in enumerate(OPTIONS):
        takes = few if number else every
        options = replace(options, verbose=verbose)
        found.append(Run(OnnxRuntime.label(options), partial(OnnxRuntime.open, options=options), takes=takes))
    found.append(Run("onnx.reference", OnnxReference.open, takes=small_shape))
    lifted = partial(OnnxReference.open, lifted=True)
    return [*found, Run("onnx.reference, float64", lifted, takes=small, lifted=True)]


def every(case: Case) -> bool:
    """Whether onnxruntime as it comes is asked for a case."""
    return True


def few(case: Case) -> bool:
    """Whether its other ways are: small cases, long ones alone, and a user's own. On a large model they cost most."""
    return case.small or case.group == "own" or case.words.startswith("batch 1,")


def find_weights(path: Path, weights: Mapping[str, Array]) -> list[Finding]:
    """What is wrong with the weights of the file: check 1."""
    try:
        return [Finding("weights", message) for message in check_weights(path, weights)]
    except Exception as error:  # a file that is damaged, or whose weights are in another that is missing
        return [Finding("weights", f"{path.name} cannot be read: {' '.join(str(error).split())}")]
