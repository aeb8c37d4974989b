"""Writing and loading ``torch.export`` archives, for AOTInductor and other readers.

Opening such a file runs a program: open only files from a source that you trust.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch.export import ExportedProgram

from ..graphs.graph import Graph
from .program import export_program
from .table import FORMATS, ExportOptions
from .torch_archive import check_program
from .torch_files import describe_file, open_checked


def needs(graphs: Mapping[str, Graph], name: str) -> tuple[str, ...]:
    """The graphs whose files must be written before: none."""
    return ()


def export(graphs: Mapping[str, Graph], name: str, folder: Path, options: ExportOptions) -> None:
    """Write ``<name>.pt2`` to ``folder``.

    Raises:
        ExportError: if PyTorch cannot export the graph.
        OSError: if the file cannot be written.
    """
    program = export_program(graphs[name])
    for node in program.graph.nodes:  # source lines with the paths of this machine; nothing needs them
        node.meta.pop("stack_trace", None)
    extra = describe_file(graphs[name].contract, options.producer)
    torch.export.save(program, folder / FORMATS["pt2"].file(name), extra_files=extra)


def load(path: Path) -> ExportedProgram:
    """The program in the file at ``path``.

    Raises:
        BundleError: if it is no such archive, is damaged, or contains Python code.
    """
    program: ExportedProgram = open_checked(path, check_program, torch.export.load)
    return program


# --- dimensions ------------------------------------------------------------------------------------------------------


# --- float64 ---------------------------------------------------------------------------------------------------------
