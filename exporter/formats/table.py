"""The formats that graphs are exported to, a row each. No torch here.

A format's *exporter* is a module with ``export(graphs, name, folder, options)``, which writes a file, and
``needs(graphs, name)``, the graphs that must have been written before. It is loaded when it is needed. How its files
are run is in :mod:`mytx.exporter.runtimes.run`, how their weights are checked in :mod:`mytx.exporter.parity.weights`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from ..contracts.contract import GRAPHS, Contract


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        name: on the command line and in the manifest.
        suffix: of its files.
        exporter: the module of this package that writes its files.
        graphs: those of mytx's models that it is made for.
        custom: whether graphs of other models can be made in it.
        flexible: whether masks can be left out.
        runs_code: whether to open a file of it can run code that somebody put there.
    """

    name: str
    suffix: str
    exporter: str
    graphs: tuple[str, ...] = GRAPHS
    custom: bool = False
    flexible: bool = False
    runs_code: bool = False

    def holds(self, contract: Contract) -> bool:
        """Whether a graph can have a file in it."""
        return self.custom if contract.custom else contract.graph in self.graphs

    def file(self, graph: str) -> str:
        """The name of the file of a graph."""
        return graph + self.suffix

    def load_exporter(self) -> Any:
        """The module that writes files."""
        return importlib.import_module(f".{self.exporter}", __package__)


PLAIN = ("encoder", "decoder", "full")  # what has no search in it

FORMATS = {
    row.name: row
    for row in (
        Format("onnx", ".onnx", "onnx.files", custom=True),
        Format(
            "torchscript",
            ".ts.pt",
            "torchscript",
            graphs=(*PLAIN, "generate"),
            flexible=True,
            runs_code=True,
        ),
        Format("pt2", ".pt2", "pt2", graphs=PLAIN, runs_code=True),
    )
}


@dataclass(frozen=True)
class ExportOptions:
    """What formats can be told.

    Attributes:
        opset: of ONNX files.
        producer: what files say that they were made by.
        verbose: let PyTorch's own messages through.
    """

    opset: int = 18
    producer: str = ""
    verbose: bool = False


def label(graph: str, format_name: str) -> str:
    """The file of a graph, for people; the model itself has none. Without a format ``graph`` is none."""
    if format_name in FORMATS:
        return FORMATS[format_name].file(graph)
    return f"{graph}, PyTorch" if format_name else graph
