"""``mytx-export locate``: find where the graphs of a bundle first differ from the model.

First each file is compared with the model in float64, module by module. If no module differs, or if the modules are
fused and have no names, the stored cases run at each level of onnxruntime's optimisation, to find a rewrite that makes
them fail.
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
    """The result of :func:`locate_in_bundle`.

    Attributes:
        bundle: folder of the bundle.
        graphs: what was found in each graph. A graph with fused modules has no compared values.
        reproductions: folders with a minimal reproduction, by graph.
        tried: number of stored cases that ran at each level of optimisation, by graph. A graph is missing if it has no
            stored cases, or if a place was found in it.
        optimizers: what fails in onnxruntime, by graph.
    """

    bundle: Path
    graphs: tuple[Located, ...]
    reproductions: Mapping[str, Path]
    tried: Mapping[str, int]
    optimizers: Mapping[str, OptimizerFault]

    @property
    def found(self) -> bool:
        """Whether any graph differs from the model, as a file or in onnxruntime."""
        return bool(self.graphs_found)

    @property
    def graphs_found(self) -> list[str]:
        """The names of the graphs that differ."""
        return [item.graph for item in self.graphs if item.introduced or item.graph in self.optimizers]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON. JSON has no infinity: a number that is not finite becomes None."""
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
    """Find where the ONNX graphs of the bundle at ``path`` first differ from the model.

    Args:
        path: folder of the bundle. A failed bundle holds its model; otherwise the model is rebuilt from the weights.
        graph: name of the graph to search; None searches those that failed, or all if none failed.
        output: folder for the reproduction of the first place; None means ``<bundle>-<graph>-reproduction``.
        factory: ``package.module:build`` of a user's own model.
        reproduce: whether to write reproductions.
        progress: called with the name of each stage.

    Raises:
        BundleError: if it is not a bundle or has no such graph; if the folder of a reproduction exists; or if the graph
            has fused modules and no stored cases.
        OptionError: if ``output`` is given and several graphs would need it, or the graph cannot have a place.
    """
    bundle = open_bundle(path, allow_failed=True)
    stored = read_stored(bundle.folder / STORED) if (bundle.folder / STORED).exists() else {}
    names = _names(bundle, graph, stored)
    # In a graph with several outputs, or with fused modules, only the optimiser is tried.
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
        if folder.exists() or folder.is_symlink():  # refuse before the work
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
    """Why no module can be named in a graph, so that only the optimiser is tried; empty if modules can be named."""
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
        raise BundleError(f"{bundle.folder} has no ONNX graphs in fp32 to look into", "export it with mytx-export onnx")
    present = [name for name, entry in everything.items() if name in stored or not without_places(entry.contract)]
    if not present:
        return _names(bundle, next(iter(everything)), stored)
    rows = bundle.manifest.parity.get("graphs", [])
    failed = {row["graph"] for row in rows if row["format"] == "onnx" and not row["passed"]}
    return [name for name in present if name in failed] or present


def _asked(stored: StoredCases) -> StoredCases:
    """The stored cases that an ONNX file runs."""
    groups = left_out(FORMATS["onnx"])
    kept = [pair for pair in zip(stored.plan, stored.expected, strict=True) if pair[0].group not in groups]
    return StoredCases(tuple(case for case, _ in kept), tuple(expected for _, expected in kept))


def _plain(place: Place) -> dict[str, Any]:
    values = {name: value for name, value in asdict(place).items() if name != "block"}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }
