"""The TorchScript and torch.export files of each kind of model, how to verify them, and copies with faults."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch

from exported_models import KINDS, build, plain
from kept import kept_root, made_once
from mytx.exporter.cases.case import Case
from mytx.exporter.cases.identities import whole_plan
from mytx.exporter.cases.plan import optional_cases
from mytx.exporter.contracts.contract import Contract
from mytx.exporter.formats.table import FORMATS, ExportOptions
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.parity.compare import Expected
from mytx.exporter.parity.prove import contract_of_file
from mytx.exporter.parity.reference import compute_references
from mytx.exporter.parity.report import GraphReport
from mytx.exporter.parity.verify import verify_file
from mytx.exporter.parity.weights import find_weights
from mytx.exporter.quiet import quiet
from mytx.exporter.runtimes.run import runs_of
from mytx.models import Model
from planting import checks


class Proven:
    """A model with the references of its plain graphs, computed when they are first asked for."""

    def __init__(self, model: Model, masks: str | None = None) -> None:
        self.model = model
        self.graphs = plain(graphs_of(model, masks))
        self._cases: dict[str, tuple[list[Case], list[dict[str, Expected]], int]] = {}

    def cases(self, name: str) -> tuple[list[Case], list[dict[str, Expected]], int]:
        """The quick plan, and after it the cases with masks left out; the references; how many the plan has."""
        if name not in self._cases:
            graph = self.graphs[name]
            plan = whole_plan(graph.contract, "quick")
            every = plan + optional_cases(graph.flexible, first=len(plan))
            self._cases[name] = every, compute_references(self.model, graph, every), len(plan)
        return self._cases[name]


class TorchFiles:
    """The files of a model in one format, in ``folder``."""

    def __init__(self, proven: Proven, format_name: str, folder: Path) -> None:
        self.proven = proven
        self.known = FORMATS[format_name]
        self.folder = folder

    def contract(self, name: str) -> Contract:
        return contract_of_file(self.known, self.proven.graphs[name])

    def path(self, name: str) -> Path:
        """The file of a graph, exported when it is first asked for."""
        path = self.folder / self.known.file(name)
        if not path.exists():
            self.export(name, self.folder)
        return path

    def export(self, name: str, folder: Path) -> None:
        with quiet():
            self.known.load_exporter().export(self.proven.graphs, name, folder, ExportOptions(producer="test"))

    def weights(self, name: str) -> dict[str, np.ndarray]:
        return {key: tensor.numpy() for key, tensor in self.proven.graphs[name].weights().items()}

    def verify(self, name: str, path: Path | None = None) -> list[GraphReport]:
        """Reports on the file of a graph in every way to run it, or on another that stands for it."""
        cases, expected, number = self.proven.cases(name)
        number = len(cases) if self.known.flexible else number
        known, contract = self.known, self.contract(name)
        here = path or self.path(name)
        present = [graph for graph in self.proven.graphs if (self.folder / known.file(graph)).exists() and not path]
        return verify_file(
            here,
            contract,
            cases[:number],
            expected[:number],
            runs_of(known, contract, present, self.folder),
            format_name=known.name,
            found=find_weights(known.name, here, self.weights(name)),
        )


class KeptTorchFiles(TorchFiles):
    """Those that are made once a session."""

    def path(self, name: str) -> Path:
        return made_once(self.folder / self.known.file(name), lambda new: self.export(name, new.parent))


def files_in(format_name: str) -> Callable[[str], TorchFiles]:
    """For a kind of model its files in a format, each kind in a folder of its own."""

    def files_of(kind: str) -> TorchFiles:
        folder = kept_root() / re.sub(r"\W+", "-", f"{format_name} {kind}")
        folder.mkdir(exist_ok=True)
        return KeptTorchFiles(proven(kind), format_name, folder)

    return cache(files_of)


@cache
def proven(kind: str) -> Proven:
    return Proven(build(kind), KINDS[kind][1])


def assert_passed(reports: list[GraphReport]) -> None:
    for report in reports:
        assert report.passed, (report.runtime, report.findings[:3])
    assert any("float64" in report.runtime for report in reports)


def found(reports: list[GraphReport]) -> set[str]:
    """The checks that found something, in all reports together, each of which failed."""
    assert not any(report.passed for report in reports)
    return set().union(*(checks(report) for report in reports))


def messages(reports: list[GraphReport]) -> str:
    return "\n".join(finding.message for report in reports for finding in report.findings)


def repack(source: Path, target: Path, changes: Mapping[str, bytes | Callable[[bytes], bytes] | None]) -> Path:
    """A copy of an archive with records changed, added, or, by None, taken out."""
    changes = dict(changes)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            root, _, record = name.partition("/")
            content = old.read(name)
            change = changes.pop(record, content)
            if callable(change):
                change = change(content)
            if change is not None:
                new.writestr(name, change)
        for record, change in changes.items():
            assert isinstance(change, bytes), record
            new.writestr(f"{root}/{record}", change)
    return target


def state(model: torch.nn.Module) -> dict[str, tuple[int, torch.Tensor]]:
    """What must not change of a model: where its weights are, and their values."""
    return {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in model.state_dict().items()}


def assert_untouched(model: torch.nn.Module, before: dict[str, tuple[int, torch.Tensor]]) -> None:
    after = state(model)
    assert list(after) == list(before)
    for name, (place, values) in before.items():
        assert after[name][0] == place
        assert torch.equal(after[name][1], values)
        assert after[name][1].dtype == values.dtype
    assert not any(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
