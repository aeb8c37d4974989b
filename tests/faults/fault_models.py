"""Models that break an identity, plans that do not try anything, and references that are not there.

The file does what the model does: comparing one with the other finds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fault import Fault, found_by
from fault_values import epsilon, positions_repeat
from mytx.exporter.graphs.graph import Graph
from mytx.exporter.graphs.modules import GraphModule
from mytx.exporter.parity.compare import Expected
from mytx.exporter.parity.reference import compute_references
from mytx.exporter.runtimes.composed import Composed
from mytx.exporter.runtimes.eager import Eager
from mytx.exporter.runtimes.run import Run
from mytx.exporter.runtimes.runtime import Runtime
from subject import Subject

ROUNDING, VALUES = found_by("rounding"), found_by("rounding", "structure")


# --- models ----------------------------------------------------------------------------------------------------------


class Around(GraphModule):
    """A graph's module with something done to its output."""

    def __init__(self, graph: Graph, change: Callable[[Tensor, dict[str, Tensor]], Tensor]) -> None:
        super().__init__(graph.module.model)
        self.inner = graph.module
        self.change = change

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.change(self.inner(**inputs), inputs)


def model_that(change: Callable[[Tensor, dict[str, Tensor]], Tensor]) -> Callable[[Subject], None]:
    """The model has the fault, and what runs it is right."""

    def plant(subject: Subject) -> None:
        honest = subject.honest_graph
        graph = replace(honest, module=Around(honest, change))
        subject.reference = graph
        subject.expected = compute_references(subject.exported.model, graph, subject.plan)
        subject.runs = [_eager("PyTorch", Eager(graph))]
        if subject.graph == "full":
            halves = [Eager(subject.exported.graphs[name]) for name in ("encoder", "decoder")]
            subject.runs.append(_eager("PyTorch, decoder(encoder)", Composed(halves[0], halves[1], subject.contract)))

    return plant


def _eager(name: str, runtime: Runtime) -> Run:
    def opened(_: Path) -> Runtime:
        return runtime

    return Run(name, opened, dimensions=False)


def padding_on_the_left_leaks(output: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """The padding before a sentence is added to it: a sum that runs over the whole row."""
    before = inputs["src_key_padding_mask"].long().cumprod(1)
    return output + 0.01 * (inputs["src"] * before).sum(1)[:, None, None].to(output.dtype)


def next_position_leaks(output: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """Each position sees the id of the next, where that is a real one."""
    real = inputs["tgt"] * (~inputs["tgt_key_padding_mask"]).long()
    later = torch.cat([real[:, 1:], torch.zeros_like(real[:, :1])], 1)
    return output + 0.01 * later[:, :, None].to(output.dtype)


def batch_leaks(output: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """A statistic of the batch, as BatchNorm in training has it."""
    return output * (1 + 0.1 * (output.size(0) - 1))


def full_is_not_its_halves(output: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """A temperature that only ``forward`` knows."""
    return output / 0.7


# --- halves, plans and references ------------------------------------------------------------------------------------


def one_half_changed(subject: Subject) -> None:
    """The full file is right, and so is the encoder's."""
    subject.edit(lambda model: epsilon(1e-3)(model.graph), "decoder")


def no_case(subject: Subject) -> None:
    subject.plan, subject.expected = [], []


def plan_cut_short(subject: Subject) -> None:
    """The long sentences are not tried, and the positions in the file start again at 32."""
    subject.edit(lambda model: positions_repeat(model.graph))
    subject.plan = subject.plan[:20]


def no_case_taken(subject: Subject) -> None:
    subject.runs = [replace(run, takes=lambda case: False) for run in subject.runs]


def references_are(change: Callable[[Expected], Expected]) -> Callable[[Subject], None]:
    def plant(subject: Subject) -> None:
        subject.expected = [{name: change(item) for name, item in outputs.items()} for outputs in subject.expected]

    return plant


def references_of_the_case_before(subject: Subject) -> None:
    subject.expected = [subject.expected[-1], *subject.expected[:-1]]


def no_references(subject: Subject) -> None:
    subject.expected = [{} for _ in subject.expected]


def noise_hides_a_fault(subject: Subject) -> None:
    """An epsilon that is a hundred times too large, and a noise beside which that is nothing."""
    subject.edit(lambda model: epsilon(1e-3)(model.graph))
    references_are(lambda expected: replace(expected, noise=1e9))(subject)


def nan_reference(expected: Expected) -> Expected:
    values = expected.values.copy()
    values.flat[0] = np.nan
    return replace(expected, values=values)


_model = partial(Fault, kind="model", checks=ROUNDING)
_plan = partial(Fault, kind="plan", small=True, others=False)
FAULTS = [
    _model("content behind padding on the left leaks", plant=model_that(padding_on_the_left_leaks), graph="encoder"),
    _model("the next position leaks", plant=model_that(next_position_leaks)),
    _model("a statistic of the batch leaks", plant=model_that(batch_leaks)),
    _model("a full model that is not its halves", plant=model_that(full_is_not_its_halves), graph="full"),
    _model("a half that is not the full graph's", plant=one_half_changed, graph="full"),
    _plan("a plan without cases", plant=no_case, checks=VALUES, words="nothing was compared"),
    _plan("a plan of which no case is run", plant=no_case_taken, checks=VALUES, words="nothing was compared"),
    _plan("a plan cut short", plant=plan_cut_short, checks=found_by("runtime")),
    _plan(
        "the reference of the case before",
        plant=references_of_the_case_before,
        checks=found_by("interface", "rounding", "structure"),
    ),
    _plan("no reference", plant=no_references, checks=found_by("interface", "rounding", "structure")),
    _plan("a reference of NaN", plant=references_are(nan_reference), checks=VALUES, words="the model itself gives NaN"),
    _plan(
        "a noise of NaN",
        plant=references_are(lambda expected: replace(expected, noise=float("nan"))),
        checks=VALUES,
    ),
    _plan("a noise that hides a fault", plant=noise_hides_a_fault, checks=found_by("not judged")),
]
