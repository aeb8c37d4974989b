"""Where the graphs of a bundle leave the model: ``mytx-export locate``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .contract import CACHED
from .errors import BundleError, OptionError
from .identities import whole_plan
from .locate import Located, Place, locate
from .opened import Bundle, open_bundle
from .plan import few_cases
from .quiet import quiet
from .rebuilt import rebuild
from .reproduction import write_reproduction


@dataclass(frozen=True)
class BundleLocated:
    """What :func:`locate_in_bundle` found.

    Attributes:
        bundle: the folder.
        graphs: what was found in each.
        reproductions: the folder with a minimal reproduction, by graph.
    """

    bundle: Path
    graphs: tuple[Located, ...]
    reproductions: Mapping[str, Path]

    @property
    def found(self) -> bool:
        """Whether any graph leaves the model."""
        return any(located.introduced for located in self.graphs)

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
                }
                for located in self.graphs
            ],
            "reproductions": {name: str(folder) for name, folder in self.reproductions.items()},
        }


PLAIN_GRAPHS = "look into encoder, decoder or full, in ONNX"


def locate_in_bundle(
    path: str | Path,
    *,
    graph: str | None = None,
    output: Path | None = None,
    factory: str | None = None,
    reproduce: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> BundleLocated:
    """Find where the ONNX graphs of the bundle at ``path`` leave the model.

    Args:
        path: the folder; a bundle that failed holds its model, another one's is rebuilt from its weights.
        graph: which to look at; None is those that failed, or all where none did.
        output: folder for the reproduction of the first place; None is ``<bundle>-<graph>-reproduction``.
        factory: ``package.module:build``, for a model that is not one of mytx's.
        reproduce: whether to write one.
        progress: told what is being done.

    Raises:
        BundleError: where it is not a bundle, or has not the graph, or the reproduction's folder exists.
        OptionError: for one ``output`` with several graphs that failed.
    """
    bundle = open_bundle(path, allow_failed=True)
    names = _names(bundle, graph)
    if output is not None and len(names) > 1:
        raise OptionError(f"one folder cannot hold reproductions of {' and '.join(names)}", "choose one with --graph")
    folders = {name: output or Path(f"{bundle.folder}-{name}-reproduction") for name in names}
    for folder in folders.values() if reproduce else ():
        if folder.exists() or folder.is_symlink():  # refused before the work
            raise BundleError(f"{folder} exists", "move it, choose another --output, or add --no-reproduction")
    found: list[Located] = []
    reproductions: dict[str, Path] = {}
    with quiet():
        progress("Rebuilding the model")
        subject = rebuild(bundle, factory)
        for name in names:
            progress(f"Looking for the place in {name}")
            file, graph_of = bundle.folder / bundle.entry(name).file, subject.graphs[name]
            with subject.tracing():
                located = locate(file, graph_of, few_cases(whole_plan(graph_of.contract)))
            found.append(located)
            place = next((place for place in located.introduced if place.block is not None), None)
            if reproduce and place is not None:
                reproductions[name] = write_reproduction(file, place, folders[name])
    return BundleLocated(bundle.folder, tuple(found), reproductions)


def _names(bundle: Bundle, graph: str | None) -> Sequence[str]:
    if graph is not None:
        if bundle.entry(graph).contract.graph in CACHED:
            raise OptionError(f"in {graph} the model's modules are fused, there is no place to name", PLAIN_GRAPHS)
        return [graph]
    present = [name for name in bundle.manifest.of_format("onnx") if name not in CACHED]
    if not present:
        raise BundleError(f"{bundle.folder} has no ONNX graphs to look into", PLAIN_GRAPHS)
    rows = bundle.manifest.parity.get("graphs", [])
    failed = {row["graph"] for row in rows if row["format"] == "onnx" and not row["passed"]}
    return [name for name in present if name in failed] or present


def _plain(place: Place) -> dict[str, Any]:
    values = {name: value for name, value in asdict(place).items() if name != "block"}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }
