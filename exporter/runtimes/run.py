"""The ways to run a file of a format: which runtime, with which options, on which cases."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..cases.case import Case
from ..contracts.contract import Contract
from ..formats.table import Format
from .composed import Composed, Stepped
from .runtime import Runtime

# By format, the module of this package that has ``check(path)``, which refuses a file that must not be opened, and
# ``runs(verbose)``, the ways to run one. It is loaded when it is needed.
HOMES = {"onnx": "onnx_runs", "torchscript": "torchscript", "pt2": "pt2"}


@dataclass(frozen=True)
class Run:
    """One way to run a file.

    Attributes:
        runtime: its name in the report.
        open: loads the file.
        takes: whether it is asked for a case.
        lifted: the file is run in float64, where nothing rounds: the check of structure.
        dimensions: whether the runtime knows the names of dimensions.
    """

    runtime: str
    open: Callable[[Path], Runtime]
    takes: Callable[[Case], bool] = lambda case: True
    lifted: bool = False
    dimensions: bool = True


def runs_of(
    known: Format, contract: Contract, present: Collection[str], folder: Path, verbose: bool = False
) -> list[Run]:
    """The ways to run a file in a format; full also by way of encoder and decoder.

    Args:
        known: the format.
        contract: of the file.
        present: the graphs that have a file in the format.
        folder: where the files are.
        verbose: let the runtime's own messages through.
    """
    runs = [_without(run, left_out(known)) for run in home_of(known).runs(verbose)]
    if contract.composed:
        runs += composed_runs(runs[0], lambda name: runs[0].open(folder / known.file(name)), contract, present)
    return runs


def left_out(known: Format) -> set[str]:
    """The groups of cases that a file of a format is not asked for."""
    # What can leave out an input is a function of PyTorch, and refuses numbers that are out of range.
    return {"steps", "range"} if known.flexible else {"steps", "optional"}


def composed_runs(
    first: Run, open_graph: Callable[[str], Runtime], contract: Contract, present: Collection[str]
) -> list[Run]:
    """The other ways to the full graph: by the encoder and the decoder, and by cached steps.

    Args:
        first: how the full graph itself is run.
        open_graph: loads another graph.
        contract: of the full graph.
        present: the graphs that there are.
    """
    found = []
    if {"encoder", "decoder"} <= set(present):
        name = f"{first.runtime}, decoder(encoder)"
        halves = partial(_open_both, Composed, ("encoder", "decoder"), open_graph, contract)
        found.append(Run(name, halves, first.takes, dimensions=False))
    if {"prefill", "step"} <= set(present):
        steps = partial(_open_both, Stepped, ("prefill", "step"), open_graph, contract)
        found.append(Run(f"{first.runtime}, N cached steps", steps, unpadded_target, dimensions=False))
    return found


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
    """Whether the target of a case has no padding: a cached step knows none. The cases of ``steps`` are made so."""
    return case.group in ("shapes", "steps") and not case.inputs["tgt_key_padding_mask"].any()


def _without(run: Run, groups: Collection[str]) -> Run:
    """``run``, not asked for cases of ``groups``."""
    return replace(run, takes=lambda case: case.group not in groups and run.takes(case))


def check_file(known: Format, path: Path) -> None:
    """Refuse a file that must not be opened: opening it would run code that somebody put there.

    Raises:
        BundleError: for such a file, and for one of another kind.
    """
    home_of(known).check(path)


def home_of(known: Format) -> Any:
    """The module that runs files of a format."""
    return importlib.import_module(f".{HOMES[known.name]}", __package__)
