"""Writing and loading ``torch.export`` archives, for AOTInductor and other readers.

Opening such a file runs a program: open only files from a source that you trust.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from ..graphs.graph import Graph
from ..graphs.modules import GraphModule
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
    graph = graphs[name]
    program = export_program(replace(graph, module=by_position(graph)))
    for node in program.graph.nodes:  # source lines with the paths of this machine; nothing needs them
        node.meta.pop("stack_trace", None)
    extra = describe_file(graph.contract, options.producer)
    torch.export.save(program, folder / FORMATS["pt2"].file(name), extra_files=extra)


def load(path: Path) -> ExportedProgram:
    """The program in the file at ``path``.

    Raises:
        BundleError: if it is no such archive, is damaged, or contains Python code.
    """
    program: ExportedProgram = open_checked(path, check_program, torch.export.load)
    return program


def by_position(graph: Graph) -> GraphModule:
    """The module of ``graph`` with the contract's inputs, and no others, as positional arguments.

    PyTorch allows one way to call a program, and readers without Python go by position. ``module().forward`` takes the
    inputs by name as well.
    """
    names = [spec.name for spec in graph.contract.inputs]

    def forward(self: GraphModule, *inputs: Tensor) -> Any:
        return type(graph.module).forward(self, **dict(zip(names, inputs, strict=True)))

    kinds = inspect.Parameter
    parameters = [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in ("self", *names)]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # torch.export goes by it
    module = copy.copy(graph.module)
    module.__class__ = type(type(module).__name__, (type(module),), {"forward": forward, "positional": True})
    return module
