"""The table of formats, one row for each. Imports no torch.

The *exporter* of a format is a module with two functions: ``export(graphs, name, folder, options)`` writes a file, and
``needs(graphs, name)`` names the graphs whose files must be written before. It is imported when it is needed. How files
of a format are run is in :mod:`mytx.exporter.runtimes.run`; how their weights are checked is in
:mod:`mytx.exporter.parity.weights`.
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
        name: the name on the command line and in the manifest.
        suffix: the end of file names.
        exporter: the module in this package that writes files.
        graphs: graphs of models of :mod:`mytx.models` that can be exported to it.
        custom: whether graphs of a user's own model can be exported to it.
        flexible: whether masks are optional in its files.
        runs_code: whether opening a file can run code that somebody put into it.
        precision: of the products in an ONNX file, as ``--precision`` names it; empty for other formats.
        made_of: the format whose files its own are made of.
        rule: by which its weights are integers; see :mod:`mytx.exporter.formats.quantisation`.
        mixed: whether some weights stay float32, so that the task holds.
        weights: the file with the weights that ONNX files share.
        runtime: the only one that can run its files; empty where others can, too.
    """

    name: str
    suffix: str
    exporter: str
    graphs: tuple[str, ...] = GRAPHS
    custom: bool = False
    flexible: bool = False
    runs_code: bool = False
    precision: str = ""
    made_of: str = ""
    rule: str = ""
    mixed: bool = False
    weights: str = ""
    runtime: str = ""

    def holds(self, contract: Contract) -> bool:
        """Whether a graph with this contract can be exported to this format."""
        return self.custom if contract.custom else contract.graph in self.graphs

    def file(self, graph: str) -> str:
        """The name of a graph's file."""
        return graph + self.suffix

    def load_exporter(self) -> Any:
        """The module that writes files, imported now."""
        return importlib.import_module(f".{self.exporter}", __package__)


PLAIN = ("encoder", "decoder", "full")  # graphs without cache or search

FORMATS = {
    row.name: row
    for row in (
        Format("onnx", ".onnx", "onnx.files", custom=True, precision="fp32", weights="weights.bin"),
        Format(
            "int8",
            ".int8.onnx",
            "onnx.int8",
            precision="int8",
            made_of="onnx",
            rule="int8",
            weights="weights.int8.bin",
        ),
        Format(
            "int4",
            ".int4.onnx",
            "onnx.int4",
            precision="int4",
            made_of="onnx",
            rule="int4",
            weights="weights.int4.bin",
            runtime="onnxruntime",
        ),
        Format(
            "auto",
            ".auto.onnx",
            "onnx.auto",
            precision="auto",
            made_of="onnx",
            rule="int8",
            mixed=True,
            weights="weights.auto.bin",
        ),
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

PRECISIONS = {row.precision: row.name for row in FORMATS.values() if row.precision}  # to the name of the format


@dataclass(frozen=True)
class ExportOptions:
    """Options for writing files.

    Attributes:
        opset: the opset of ONNX files.
        producer: the name and version of the program, as files state it.
        verbose: show PyTorch's own messages.
        kept: the names of weights that stay float32 in files of formats that are ``mixed``.
    """

    opset: int = 18
    producer: str = ""
    verbose: bool = False
    kept: frozenset[str] = frozenset()


def label(graph: str, format_name: str) -> str:
    """The name of a graph's file for reports, or ``<graph>, PyTorch`` for the model itself, which has no file.

    If ``format_name`` is empty, ``graph`` names no graph and is returned unchanged.
    """
    if format_name in FORMATS:
        return FORMATS[format_name].file(graph)
    return f"{graph}, PyTorch" if format_name else graph
