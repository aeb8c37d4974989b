"""Tracing a graph with ``torch.export``. ONNX and pt2 files are made from the resulting program."""

from __future__ import annotations

import contextlib
import copy
import io
import re
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from ..cases.plan import example
from ..contracts.contract import Axis, Contract
from ..errors import ExportError, first_line
from ..graphs.graph import Graph
from ..graphs.modules import GraphModule
from ..graphs.parameters import pruned, untied
from ..quiet import is_quiet


def export_program(graph: Graph) -> ExportedProgram:
    """Trace ``graph`` at the contract's traced lengths, with every axis of the contract free.

    The program takes its inputs by name, or as the module says by position, and holds the weights of the graph alone.

    Raises:
        ExportError: where PyTorch cannot.
    """
    contract = graph.contract
    inputs: dict[str, Any] = {name: torch.from_numpy(array) for name, array in example(contract).inputs.items()}
    module = copy.copy(graph.module)
    module._modules = {"model": untied(pruned(graph.module.model, graph.scopes))}
    dims = _dynamic_shapes(contract)
    return trace(module, module.arguments(inputs), module.arguments(dims), f"the {contract.graph} graph")


def trace(module: GraphModule, inputs: dict[str, Any], dims: dict[str, Any], what: str) -> ExportedProgram:
    """``module`` as a program.

    Args:
        module: takes ``inputs``.
        inputs: tensors, or lists of them.
        dims: by input, which dimensions vary; see ``torch.export.export``.
        what: for the error.

    Raises:
        ExportError: where PyTorch cannot.
    """
    try:
        # When PyTorch fails, it prints the whole graph.
        with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()) if is_quiet() else contextlib.nullcontext():
            given, named = (tuple(inputs.values()), {}) if module.positional else ((), inputs)
            return torch.export.export(module, given, kwargs=named, dynamic_shapes=dims)
    except Exception as error:
        limits = dict(re.findall(r"(\w+) = Dim\('\w+'[^)]*max=(\d+)", str(error)))
        if limits:  # PyTorch reports them in the last of many lines
            lengths = ", ".join(f'"{name}": {most}' for name, most in limits.items())
            raise ExportError(
                f"PyTorch could not export {what}: the model takes no more than {lengths}",
                f"write that in the contract: longest={{{lengths}}}",
            ) from error
        raise ExportError(
            f"PyTorch could not export {what}: {first_line(error)}", "run again with -v for the whole story"
        ) from error


def _dynamic_shapes(contract: Contract) -> dict[str, dict[int, Any]]:
    """For each input, the dimensions that vary. A minimum of 1 is given, or torch.export would require 2 or more."""
    dims = {name: Dim(name, min=axis.minimum, max=axis.maximum) for name, axis in contract.axes.items()}
    return {
        spec.name: {
            index: dims[axis.name] if axis.times == 1 else axis.times * dims[axis.name]
            for index, axis in enumerate(spec.axes)
            if isinstance(axis, Axis)
        }
        for spec in contract.inputs
    }
