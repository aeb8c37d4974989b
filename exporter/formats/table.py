"""The formats that graphs are exported to. A new one is a new file, and a row here. No torch here.

A format is two modules (or one). The *exporter* has ``export(graphs, name, folder, options)``, which writes a file,
and ``needs(graphs, name)``, the graphs that must have been written before. The *checker* has ``check(path)``, which
refuses a file that must not be opened, ``runs(verbose)``, the ways to run it, and ``find_weights(path, weights)``.
They are loaded when they are needed.
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
        exporter, checker: modules of this package.
        graphs: those of mytx's models that it is made for.
        custom: whether graphs of other models can be made in it.
        flexible: whether masks can be left out.
        runs_code: whether to open a file of it can run code that somebody put there.
    """

    name: str
    suffix: str
    exporter: str
    checker: str
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
        return importlib.import_module(f"..{self.exporter}", __package__)

    def load_checker(self) -> Any:
        """The module that runs them."""
        return importlib.import_module(f"..{self.checker}", __package__)


PLAIN = ("encoder", "decoder", "full")  # what has no search in it

FORMATS = {
    row.name: row
    for row in (
        Format("onnx", ".onnx", "formats.onnx.files", "runtimes.onnx_checks", custom=True),
        Format(
            "torchscript",
            ".ts.pt",
            "formats.torchscript",
            "formats.torchscript",
            graphs=(*PLAIN, "generate"),
            flexible=True,
            runs_code=True,
        ),
        Format("pt2", ".pt2", "formats.pt2", "formats.pt2", graphs=PLAIN, runs_code=True),
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
