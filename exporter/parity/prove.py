"""Proof of a bundle's files against the model: references once, then every format in every way that it can be run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from ..cases.case import Array, Case, small
from ..cases.identities import every_case
from ..cases.plan import check_level
from ..contracts.contract import Contract
from ..formats.quantisation import quantised_weights, rule_of
from ..formats.table import FORMATS, Format
from ..graphs.graph import Graph
from ..memory import release_memory
from ..runtimes.eager import Eager
from ..runtimes.run import Run, composed_runs, runs_of
from .compare import Expected
from .forecast import Forecast
from .lending import lent
from .noise import Noise
from .quantised import dequantised, truths
from .reference import threads_for
from .report import GraphReport, ParityReport
from .search_reference import endless
from .stored import BUNDLE_LIMIT, StoredCases, key_of
from .verify import verify_file
from .weights import find_weights

Progress = Callable[[str], None]
Clock = Callable[[str], AbstractContextManager[None]]
IDS_SHARE = 0.1  # of the room for stored cases: ids are small
NO_BATCH = "a sentence alone with the same in a batch, as no dimension is called batch"
ENDLESS = (
    "no sentence of the plan ends before it must, so whether the search stops there was not tried: --case gives more"
)


@dataclass(frozen=True)
class Request:
    """What to try the files on.

    Attributes:
        level: of the plan: ``quick``, ``standard`` or ``thorough``.
        own: a user's own cases, by graph.
        verbose: let the runtimes' own messages through.
        originals: by graph, another implementation of the model, in float64.
        kept: the names of weights that stay float32 in files of formats that are ``mixed``.
    """

    level: str = "standard"
    own: Mapping[str, Sequence[Case]] | None = None
    verbose: bool = False
    originals: Mapping[str, Run] | None = None
    kept: frozenset[str] = frozenset()


def prove(
    model: nn.Module,
    graphs: Mapping[str, Graph],
    formats: Sequence[str],
    folder: Path,
    request: Request,
    *,
    timed: Clock = lambda stage: nullcontext(),
    progress: Progress = lambda _: None,
) -> tuple[ParityReport, dict[str, StoredCases]]:
    """Verify the files of ``graphs`` in ``formats`` at ``folder``.

    Args:
        model: the truth, in float32 and evaluation mode.
        graphs: those that have files.
        formats: names in :data:`~mytx.exporter.formats.table.FORMATS`.
        folder: of the bundle.
        request: what to try.
        timed: a context manager for a stage's name.
        progress: told what is being done.

    Returns:
        The report, and the cases to store with the bundle.

    Raises:
        OptionError: if there is no plan of this level.
    """
    check_level(request.level)
    reports: list[GraphReport] = []
    held = {
        name: [FORMATS[item] for item in formats if FORMATS[item].holds(graph.contract)]
        for name, graph in graphs.items()
    }
    room = _Room(graphs, held)
    forecast = Forecast(graphs, request.level)
    for name, graph in graphs.items():  # one after the other: the references of large models are large
        plan = _plan(graph, request, flexible=any(known.flexible for known in held[name]), present=graphs)
        progress(f"Computing the reference of {name} in PyTorch{forecast.left(name)}")
        with timed("reference"):
            noise = Noise(model, graph, plan, room.of(name))
        release_memory()
        with timed("verify"):
            reports += _prove_eager(graphs, graph, noise, (request.originals or {}).get(name))
            untried = _untried(graph, plan, noise.references)
            for known in (known for known in held[name] if not known.made_of):
                found = _prove_file(graphs, graph, known, folder, noise, request, progress)
                reports += [replace(report, notes=(*report.notes, *untried)) for report in found]
                release_memory()
        room.stored[name] = noise.stored()
        del noise
        release_memory(cycles=False)
        for known in (known for known in held[name] if known.made_of):
            rule = rule_of(known, request.kept)
            with dequantised(model, rule):
                for truth in truths(known, rule, graph, plan):
                    progress(f"Computing the reference of {known.file(name)} in PyTorch")
                    with timed("reference"):
                        noise = Noise(model, truth.graph, truth.plan, room.of(truth.key), truth.other)
                    with timed("verify"):
                        takes = truth.takes
                        reports += _prove_file(graphs, graph, known, folder, noise, request, progress, takes)
                    room.stored[truth.key] = noise.stored()
                    del noise
                    release_memory()
    return ParityReport(tuple(reports)), room.stored


class _Room:
    """Room for the cases to store, divided among what is left.

    Attributes:
        stored: the cases so far, by their key.
    """

    def __init__(self, graphs: Mapping[str, Graph], held: Mapping[str, Sequence[Format]]) -> None:
        self.stored: dict[str, StoredCases] = {}
        self._shares: dict[str, float] = {}
        for name, graph in graphs.items():
            share = IDS_SHARE if graph.contract.searches else 1.0
            keys = [key_of(known, name, lifted=lifted) for known in held[name] for lifted in (False, True)]
            self._shares |= dict.fromkeys([name, *keys], share)

    def of(self, key: str) -> int:
        """The bytes that the cases with this key may take."""
        rest = BUNDLE_LIMIT - sum(cases.nbytes for cases in self.stored.values())
        left = sum(share for other, share in self._shares.items() if other not in self.stored)
        return int(rest * self._shares[key] / left)


def _untried(graph: Graph, plan: Sequence[Case], references: Sequence[Mapping[str, Expected]]) -> list[str]:
    """What no case of the plan can show."""
    notes = [ENDLESS] if graph.contract.searches and endless(plan, references) else []
    return notes + ([NO_BATCH] if graph.contract.custom and "batch" not in graph.contract.axes else [])


def _plan(graph: Graph, request: Request, *, flexible: bool, present: Collection[str]) -> list[Case]:
    own = (request.own or {}).get(graph.name, ())
    other = graph.flexible if flexible else None
    return every_case(graph.contract, request.level, own, flexible=other, present=present)


def contract_of_file(known: Format, graph: Graph) -> Contract:
    """What the file of ``graph`` in a format takes and gives."""
    return graph.flexible if known.flexible else graph.contract


def weights_of_file(known: Format, graph: Graph, kept: Collection[str] = ()) -> dict[str, Array]:
    """What the file of ``graph`` in a format must hold, by name: the model's weights, or what is made of them, except
    of those ``kept`` in float32 where the format is ``mixed``.

    Raises:
        ExportError: where a weight is not finite, and the format cannot hold that.
    """
    scripted = graph.scripted if known.name == "torchscript" else None
    tensors = graph.weights() if scripted is None else dict(scripted().state_dict())
    weights: dict[str, Array] = {name: tensor.numpy() for name, tensor in tensors.items()}
    return quantised_weights(weights, rule_of(known, kept), graph.looked_up()) if known.made_of else weights


def _prove_file(
    graphs: Mapping[str, Graph],
    graph: Graph,
    known: Format,
    folder: Path,
    noise: Noise,
    request: Request,
    progress: Progress,
    takes: Callable[[Run], bool] = lambda run: True,
) -> list[GraphReport]:
    progress(f"Verifying {known.file(graph.name)}")
    path = folder / known.file(graph.name)
    weights = weights_of_file(known, graph, request.kept)
    found = find_weights(known.name, path, weights, others=graph.contract.custom)
    del weights
    release_memory()
    contract = contract_of_file(known, graph)
    present = [name for name, item in graphs.items() if known.holds(item.contract)]
    runs = [run for run in runs_of(known, contract, present, folder, request.verbose) if takes(run)]
    with lent(graph.module.model, folder):
        return verify_file(
            path,
            contract,
            noise.plan,
            noise.references,
            runs,
            format_name=known.name,
            found=found,
            measure=noise.more,
            settle=noise.settle,
            told=lambda done, total: progress(f"Verifying {path.name}: {done} of {total} cases"),
        )


def _prove_eager(
    graphs: Mapping[str, Graph],
    graph: Graph,
    noise: Noise,
    original: Run | None = None,
) -> list[GraphReport]:
    """The identities in PyTorch itself: what does not hold there can hold nowhere. And the ``original``."""
    whole = Run("PyTorch", lambda path: Eager(graph), small, dimensions=False)
    runs = [replace(whole, takes=lambda case: case.group == "identities")]
    if graph.contract.composed:
        runs += composed_runs(whole, lambda name: Eager(graphs[name]), graph.contract, graphs)
    asked = [run for run in runs if any(run.takes(case) for case in noise.plan)]
    asked += [original] if original else []  # with nothing to take it fails
    with torch.inference_mode(), threads_for(graph.module.model), ExitStack() as stack:
        for other in graphs.values():
            stack.enter_context(other.module.fused_once())
        return verify_file(
            Path(graph.name),
            graph.contract,
            noise.plan,
            noise.references,
            asked,
            format_name="eager",
            settle=noise.settle,
        )
