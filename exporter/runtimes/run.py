"""The ways to run a file of each format: the runtime, its options, and the cases that it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..cases.case import Case, small_core
from ..contracts.contract import CACHED, Contract
from ..formats.table import Format
from .composed import Composed, Stepped
from .runtime import Runtime

# For each format the module in this package with ``check(path)``, which refuses a file that must not be opened, and
# ``runs(verbose)``, the ways to run a file. It is imported when it is needed.
MODULES = {
    "onnx": "onnx_runs",
    "int8": "int8_runs",
    "int4": "int4_runs",
    "auto": "int8_runs",
    "torchscript": "torchscript",
    "pt2": "pt2",
}


@dataclass(frozen=True)
class Run:
    """One way to run a file.

    Attributes:
        runtime: the name in the report.
        open: opens the file.
        takes: tells whether it runs a case.
        lifted: whether the file is run in float64, without float32 rounding: the check of structure.
        dimensions: whether the runtime describes dimensions by their names.
        rounds: whether it rounds activations to 8 bits.
    """

    runtime: str
    open: Callable[[Path], Runtime]
    takes: Callable[[Case], bool] = lambda case: True
    lifted: bool = False
    dimensions: bool = True
    rounds: bool = False


def runs_of(
    file_format: Format, contract: Contract, present: Collection[str], folder: Path, verbose: bool = False
) -> list[Run]:
    """The ways to run a file; ``full`` is also run by its parts, the encoder and the decoder or cached steps.

    Args:
        file_format: format of the file.
        contract: contract of the graph in the file.
        present: names of the graphs that have a file in the format.
        folder: the folder with the files.
        verbose: show the runtime's own messages.
    """
    runs = [_without(run, left_out(file_format)) for run in _module_of(file_format).runs(verbose)]
    if contract.searches:  # onnx.reference takes long to run a search node by node
        runs = [_among(small_core, run) if run.lifted else run for run in runs]
    if contract.composed:
        if runs[0].rounds:  # what is rounded together in one step is not what is in the whole
            present = [name for name in present if name not in CACHED]
        runs += composed_runs(runs[0], lambda name: runs[0].open(folder / file_format.file(name)), contract, present)
    return runs


def left_out(file_format: Format) -> set[str]:
    """The groups of cases that files of a format do not run."""
    # A format with optional masks is TorchScript: its searches refuse numbers out of range.
    return {"steps", "range"} if file_format.flexible else {"steps", "optional"}


def composed_runs(
    first: Run, open_graph: Callable[[str], Runtime], contract: Contract, present: Collection[str]
) -> list[Run]:
    """The ways to run the full graph by other graphs: by encoder and decoder, and by cached steps.

    Args:
        first: the way to run the full graph itself. The others run the core of the cases that it runs.
        open_graph: opens another graph by its name.
        contract: contract of the full graph.
        present: names of the graphs that can be opened.
    """
    found = []
    if {"encoder", "decoder"} <= set(present):
        name = f"{first.runtime}, decoder(encoder)"
        halves = partial(_open_both, Composed, ("encoder", "decoder"), open_graph, contract)
        halves_too = replace(
            first, runtime=name, open=halves, takes=lambda case: _by_parts(case) and first.takes(case), dimensions=False
        )
        found.append(halves_too)
    if {"prefill", "step"} <= set(present):
        steps = partial(_open_both, Stepped, ("prefill", "step"), open_graph, contract)
        found.append(
            Run(
                f"{first.runtime}, N cached steps",
                steps,
                lambda case: case.core and unpadded_target(case) and first.takes(replace(case, group="shapes")),
                dimensions=False,
            )
        )
    return found


def _by_parts(case: Case) -> bool:
    """Whether the full graph is run by encoder and decoder: each shape and mask once."""
    return case.core and case.group != "steps"


def _open_both(
    kind: type[Composed] | type[Stepped],
    names: tuple[str, str],
    open_graph: Callable[[str], Runtime],
    contract: Contract,
    _: Path,
) -> Runtime:
    first, second = map(open_graph, names)
    return kind(first, second, contract)


def unpadded_target(case: Case) -> bool:
    """Whether cached steps run a case: its target has no padding. Cases in the group ``steps`` are made for them."""
    return case.group in ("shapes", "steps") and not case.inputs["tgt_key_padding_mask"].any()


def _without(run: Run, groups: Collection[str]) -> Run:
    """``run`` without the cases of ``groups``."""
    return _among(lambda case: case.group not in groups, run)


def _among(chosen: Callable[[Case], bool], run: Run) -> Run:
    """``run`` with those of its cases that are ``chosen``."""
    return replace(run, takes=lambda case: chosen(case) and run.takes(case))


def check_file(file_format: Format, path: Path) -> None:
    """Check a file before it is opened: it must not contain code that opening it would run.

    Raises:
        BundleError: for a file with such code, and for a file of another format.
    """
    _module_of(file_format).check(path)


def _module_of(file_format: Format) -> Any:
    return importlib.import_module(f".{MODULES[file_format.name]}", __package__)
