"""What a fault is planted in: an honest file, its plan, its references, and the ways to run it."""

from __future__ import annotations

import gc
import math
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, ModelProto

from exported_models import Exported, kept_of
from mytx.exporter.cases.case import Case, small
from mytx.exporter.contracts.contract import Contract
from mytx.exporter.formats.quantisation import rule_of
from mytx.exporter.formats.table import FORMATS, Format
from mytx.exporter.graphs.graph import Graph
from mytx.exporter.parity.compare import Comparison, Expected, compare_case
from mytx.exporter.parity.noise import Noise
from mytx.exporter.parity.prove import weights_of_file
from mytx.exporter.parity.quantised import Truth, dequantised
from mytx.exporter.parity.reference import compute_references, measure_more
from mytx.exporter.parity.report import Finding, GraphReport
from mytx.exporter.parity.search_reference import measure_search
from mytx.exporter.parity.verify import verify_file
from mytx.exporter.parity.weights import find_weights
from mytx.exporter.runtimes.composed import Composed
from mytx.exporter.runtimes.onnx_reference import OnnxReference
from mytx.exporter.runtimes.run import Run, runs_of, unpadded_target
from mytx.exporter.runtimes.runtime import Runtime, run_all

ONNX = FORMATS["onnx"]
COUNTS = 10.0  # noises: what moves the float64 reference by more must be seen in the outputs
FEW = 8  # cases that are run at a time until the fault is seen
Wrap = Callable[[Runtime], Runtime]


@dataclass
class Subject:
    """A file on its way through the verifier; a fault changes any part of it.

    Attributes:
        exported: the model and its honest files, which stay as they are.
        graph: which of them is examined.
        folder: for files with faults; with the graph's own and, for ``full``, those of its halves.
        known: the format of the files.
        plan, expected, runs: as :func:`~mytx.exporter.parity.prove.prove` would make them.
        noise: which holds the plan and the references, where they are not those of a fault.
        found: whether the weights of the file are checked.
        reference: whose outputs are right: another graph of the same contract, where the model itself is at fault.
        wrap: what runs are wrapped in, where the runtime is at fault.
        stepped: makes the full graph of prefill and step, where what runs these is at fault.
    """

    exported: Exported
    graph: str
    folder: Path
    known: Format = ONNX
    plan: list[Case] = field(default_factory=list)
    expected: list[dict[str, Expected]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    reference: Graph | None = None
    wrap: Wrap | None = None
    stepped: Callable[[Runtime, Runtime], Runtime] | None = None
    noise: Noise = field(init=False)
    noises: list[tuple[Truth, Noise]] = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        names = self.exported.graphs if self.graph == "full" else [self.graph]
        for name in names:
            honest = self.exported.quantised(name, self.known.name) if self.known.made_of else self.exported.path(name)
            shutil.copy(honest, self.file(name))
        self.noises = self.exported.quantised_noises(self.graph, self.known.name) if self.known.made_of else []
        self.noise = self.noises[-1][1] if self.noises else self.exported.noise(self.graph)  # without rounding
        self.plan, self.expected = self.noise.plan, self.noise.references
        self.runs = runs_of(self.known, self.contract, names, self.folder)

    def file(self, name: str) -> Path:
        return self.folder / self.known.file(name)

    @property
    def path(self) -> Path:
        return self.file(self.graph)

    @property
    def contract(self) -> Contract:
        return self.exported.contract(self.graph)

    @property
    def honest_graph(self) -> Graph:
        return self.exported.every[self.graph]

    # --- planting ----------------------------------------------------------------------------------------------------

    def edit(self, function: Callable[[ModelProto], None], name: str = "") -> None:
        """Change the file of a graph; that of the subject, unless another is named."""
        path = self.file(name or self.graph)
        model = onnx.load(path)
        before = model.SerializeToString(deterministic=True)
        function(model)
        assert model.SerializeToString(deterministic=True) != before, "nothing was planted"
        onnx.save(model, path)

    def wrap_runtimes(self, wrap: Wrap, chosen: Callable[[Run], bool] = lambda run: True) -> None:
        """Put something between the verifier and the runtimes of the chosen runs."""

        def opened(run: Run, path: Path) -> Runtime:
            return wrap(run.open(path))

        self.wrap = wrap
        self.runs = [replace(run, open=partial(opened, run)) if chosen(run) else run for run in self.runs]

    # --- what comes of it --------------------------------------------------------------------------------------------

    def verify(self) -> list[GraphReport]:
        """The reports of the standard plan."""
        found = find_weights(
            self.known.name, self.path, weights_of_file(self.known, self.honest_graph, kept_of(self.exported.model))
        )
        if self.noises:
            return self._verify_quantised(found)
        graph = self.reference or self.honest_graph
        more = measure_search if self.contract.searches else measure_more
        planted = self.expected is not self.noise.references or self.plan is not self.noise.plan
        measure = partial(more, self.exported.model, graph, self.plan, self.expected)
        return verify_file(
            self.path,
            self.contract,
            self.plan,
            self.expected,
            self.runs,
            format_name="onnx",
            found=found,
            measure=measure,
            settle=None if planted else self.noise.settle,  # it would put the right references in their place
        )

    def _verify_quantised(self, found: list[Finding]) -> list[GraphReport]:
        with dequantised(self.exported.model, rule_of(self.known, kept_of(self.exported.model))):
            return [
                report
                for truth, noise in self.noises
                for report in verify_file(
                    self.path,
                    self.contract,
                    noise.plan,
                    noise.references,
                    [run for run in self.runs if truth.takes(run)],
                    format_name=self.known.name,
                    found=found,
                    measure=noise.more,
                    settle=noise.settle,
                )
            ]

    def moved(self, enough: float = math.inf) -> float:
        """How far the fault moves the float64 reference, in noises of float32, in the case where it is furthest.

        Infinite where there is no number to compare: a wrong shape, NaN, or no output at all. More than ``enough`` need
        not be told exactly: the cases after it are left out.
        """
        if self.reference is not None:
            plan, honest = self.exported.plan(self.graph), self.exported.expected(self.graph)
            faulty = compute_references(self.exported.model, self.reference, plan)
            return max(_distance(outputs, expected) for outputs, expected in zip(faulty, honest, strict=True))
        ways = [False, True] if self.file("decoder").exists() and self.graph == "full" else [False]
        worst = 0.0
        for both in ways:
            if worst <= enough:
                takes = small if self.contract.searches else None
                worst = max(worst, self._moved_by(self._lifted(both), takes, enough=enough))
        if self.stepped is not None and worst <= enough:  # with the cases that are made for cached steps
            prefill, step = (OnnxReference.open(self.file(name), lifted=True) for name in ("prefill", "step"))
            pairs = zip(self.plan, self.expected, strict=True)
            worst = max(worst, self._moved_by(self.stepped(prefill, step), _stepped, pairs, enough=enough))
        return worst

    def _lifted(self, both: bool) -> Runtime | None:
        """The file in float64, or its halves one after the other; None where it cannot be loaded."""
        try:
            if not both:
                return OnnxReference.open(self.path, lifted=True)
            halves = [OnnxReference.open(self.file(name), lifted=True) for name in ("encoder", "decoder")]
            return Composed(halves[0], halves[1], self.contract.lifted())
        except Exception:
            return None

    def _moved_by(
        self,
        runtime: Runtime | None,
        takes: Callable[[Case], bool] | None = None,
        pairs: Iterable[tuple[Case, Mapping[str, Expected]]] = (),
        *,
        enough: float = math.inf,
    ) -> float:
        if runtime is None:
            return math.inf
        runtime = self.wrap(runtime) if self.wrap else runtime
        honest = (self.noise.plan, self.noise.references)
        if not self.noises:
            honest = (self.exported.plan(self.graph), self.exported.expected(self.graph))
        pairs = pairs or zip(*honest, strict=True)
        chosen = [(case, outputs) for case, outputs in pairs if takes is None or takes(case)]
        worst = 0.0
        for start in range(0, len(chosen), FEW):
            if worst <= enough:
                worst = max(worst, self._moved_in(chosen[start : start + FEW], runtime))
        return worst

    def _moved_in(self, chosen: list[tuple[Case, Mapping[str, Expected]]], runtime: Runtime) -> float:
        try:
            results = run_all(runtime, [case.inputs for case, _ in chosen])
        except Exception:
            return math.inf
        worst = 0.0
        for outputs, (_, expected) in zip(results, chosen, strict=True):
            if isinstance(outputs, Exception):
                return math.inf
            wanted = {name: array for name, array in outputs.items() if name in expected}
            for comparison in compare_case(self.contract.lifted(), wanted, expected):
                worst = max(worst, _in_noises(comparison))
        return worst


def _stepped(case: Case) -> bool:
    return small(case) and unpadded_target(case)


def collect_less() -> None:
    """Let the garbage collector leave alone what is there by now: PyTorch and its exporter.

    The verifier collects often, to be small beside a large model; with a tiny one that is most of its time.
    """
    gc.collect()
    gc.freeze()


def _in_noises(comparison: Comparison) -> float:
    """How large the error is; infinite where there is no number to compare, or an id is another."""
    if math.isinf(comparison.ratio) or math.isnan(comparison.noise):
        return math.inf
    return comparison.max_abs_error / (comparison.noise or math.inf)


def _distance(faulty: Mapping[str, Expected], honest: Mapping[str, Expected]) -> float:
    """The largest difference between two references, in noises of the second."""
    return max(
        float(np.abs(faulty[name].values - expected.values).max(initial=0.0)) / expected.noise
        for name, expected in honest.items()
        if expected.noise
    )


# --- ways to plant ---------------------------------------------------------------------------------------------------


def in_model(function: Callable[[ModelProto], None]) -> Callable[[Subject], None]:
    """A fault in the file, by a function that changes its model."""
    return lambda subject: subject.edit(function)


def in_graph(function: Callable[[GraphProto], None]) -> Callable[[Subject], None]:
    """A fault in the file, by a function that changes its graph."""
    return lambda subject: subject.edit(lambda model: function(model.graph))
