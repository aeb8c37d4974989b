"""Where the graphs of a bundle leave the model: ``mytx-export locate``.

First the file, in float64, beside the model. Where that has no fault, or has no modules any more to name, its stored
cases are run at each level of onnxruntime's optimisation, and a rewrite that makes them fail is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..bundle.open import Bundle, open_bundle
from ..bundle.rebuild import rebuild
from ..cases.identities import whole_plan
from ..cases.plan import few_cases
from ..contracts.contract import CACHED, Contract
from ..errors import BundleError, OptionError
from ..formats.table import FORMATS
from ..parity.stored import STORED, StoredCases, read_stored
from ..quiet import quiet
from ..runtimes.run import left_out
from .optimizer import OptimizerFault, blame_optimizer
from .places import Located, Place, locate
from .reproduction import write_reproduction


@dataclass(frozen=True)
class BundleLocated:
    """What :func:`locate_in_bundle` found.

    Attributes:
        bundle: the folder.
        graphs: what was found in each. Where modules are fused no value was compared.
        reproductions: the folder with a minimal reproduction, by graph.
        tried: how many stored cases were run at each level of optimisation, by graph; none where there are no such
            cases, or a place was found.
        optimizers: what fails in onnxruntime, by graph.
    """

    bundle: Path
    graphs: tuple[Located, ...]
    reproductions: Mapping[str, Path]
    tried: Mapping[str, int]
    optimizers: Mapping[str, OptimizerFault]

    @property
    def found(self) -> bool:
        """Whether any graph leaves the model, as a file or in onnxruntime."""
        return bool(self.graphs_found)

    @property
    def graphs_found(self) -> list[str]:
        """Which graphs do."""
        return [item.graph for item in self.graphs if item.introduced or item.graph in self.optimizers]

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON, which has no infinity: a number that is not finite becomes None."""
        return {
            "found": self.found,
            "bundle": str(self.bundle),
            "graphs": [
                {
                    "graph": located.graph,
                    "introduced": [_plain(place) for place in located.introduced],
                    "passed_on": list(located.passed_on),
                    "compared": located.compared,
                    "unmatched": list(located.unmatched),
                    "tried": self.tried.get(located.graph, 0),
                    "optimizer": self._optimizer(located.graph),
                }
                for located in self.graphs
            ],
            "reproductions": {name: str(folder) for name, folder in self.reproductions.items()},
        }

    def _optimizer(self, graph: str) -> dict[str, Any] | None:
        return self.optimizers[graph].to_dict() if graph in self.optimizers else None


def locate_in_bundle(
    path: str | Path,
    *,
    graph: str | None = None,
    output: Path | None = None,
    factory: str | None = None,
    reproduce: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> BundleLocated:
    """Find where the ONNX graphs of the bundle at ``path`` leave the model, in the file or by onnxruntime's optimiser.

    Args:
        path: the folder; a bundle that failed holds its model, another one's is rebuilt from its weights.
        graph: which to look at; None is those that failed, or all where none did.
        output: folder for the reproduction of the first place; None is ``<bundle>-<graph>-reproduction``.
        factory: ``package.module:build``, for a model that is not one of mytx's.
        reproduce: whether to write one.
        progress: told what is being done.

    Raises:
        BundleError: where it is not a bundle, or has not the graph, or the reproduction's folder exists; or the graph
            has no modules any more and no stored cases.
        OptionError: for one ``output`` with several graphs that failed, or with none that has a place to name.
    """
    bundle = open_bundle(path, allow_failed=True)
    stored = read_stored(bundle.folder / STORED) if (bundle.folder / STORED).exists() else {}
    names = _names(bundle, graph, stored)
    # Of a graph with several outputs the optimiser alone is tried.
    whole = [name for name in names if not without_places(bundle.entry(name).contract)]
    if output is not None and len(whole) != 1:
        if whole:
            raise OptionError(
                f"one folder cannot hold reproductions of {' and '.join(whole)}", "choose one with --graph"
            )
        why = without_places(bundle.entry(names[0]).contract)
        raise OptionError(f"in {names[0]} there is no place to name: {why}", "omit --output")
    folders = {name: output or Path(f"{bundle.folder}-{name}-reproduction") for name in whole}
    for folder in folders.values() if reproduce else ():
        if folder.exists() or folder.is_symlink():  # refused before the work
            raise BundleError(f"{folder} exists", "move it, choose another --output, or add --no-reproduction")
    found: list[Located] = []
    reproductions: dict[str, Path] = {}
    tried: dict[str, int] = {}
    optimizers: dict[str, OptimizerFault] = {}
    with quiet():
        if whole:
            progress("Rebuilding the model")
        subject = rebuild(bundle, factory) if whole else None
        for name in names:
            entry = bundle.entry(name)
            file = bundle.folder / entry.file
            located = Located(name, (), (), 0, ())
            if subject is not None and name in whole:
                progress(f"Looking for the place in {name}")
                graph_of = subject.graphs[name]
                with subject.tracing():
                    located = locate(file, graph_of, few_cases(whole_plan(graph_of.contract)))
            found.append(located)
            place = next((place for place in located.introduced if place.block is not None), None)
            if reproduce and place is not None:
                reproductions[name] = write_reproduction(file, place, folders[name])
            cases = _asked(stored[name]) if name in stored else StoredCases((), ())
            if not located.introduced and cases.plan:
                progress(f"Trying the optimiser on {name}")
                fault = blame_optimizer(file, entry.contract, cases.plan, cases.expected)
                tried[name] = len(cases.plan)
                optimizers |= {name: fault} if fault is not None else {}
    return BundleLocated(bundle.folder, tuple(found), reproductions, tried, optimizers)


def without_places(contract: Contract) -> str:
    """Why no module can be named in a graph, if none can: then the optimiser alone is tried."""
    if contract.graph in CACHED:
        return "the model's modules are fused"
    return "there are several outputs" if len(contract.outputs) > 1 else ""


def _names(bundle: Bundle, graph: str | None, stored: Collection[str]) -> Sequence[str]:
    if graph is not None:
        if graph not in stored and (why := without_places(bundle.entry(graph).contract)):
            raise BundleError(
                f"in {graph} {why}, and {bundle.folder} holds no reference cases to run it on",
                "export it again, without --no-verify",
            )
        return [graph]
    everything = bundle.manifest.of_format("onnx")
    if not everything:
        raise BundleError(f"{bundle.folder} has no ONNX graphs to look into", "export it with mytx-export onnx")
    present = [name for name, entry in everything.items() if name in stored or not without_places(entry.contract)]
    if not present:
        return _names(bundle, next(iter(everything)), stored)
    rows = bundle.manifest.parity.get("graphs", [])
    failed = {row["graph"] for row in rows if row["format"] == "onnx" and not row["passed"]}
    return [name for name in present if name in failed] or present


def _asked(stored: StoredCases) -> StoredCases:
    """Those that an ONNX file is asked for."""
    groups = left_out(FORMATS["onnx"])
    kept = [pair for pair in zip(stored.plan, stored.expected, strict=True) if pair[0].group not in groups]
    return StoredCases(tuple(case for case, _ in kept), tuple(expected for _, expected in kept))


def _plain(place: Place) -> dict[str, Any]:
    values = {name: value for name, value in asdict(place).items() if name != "block"}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }
