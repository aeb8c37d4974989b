"""A graph as a ``torch.export`` program: the only home of ``torch.export``'s tracing. ONNX and pt2 are made of it."""

from __future__ import annotations

import contextlib
import copy
import io
import re
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from ..cases.plan import example
from ..contracts.contract import Axis, Contract
from ..errors import ExportError, first_line
from ..graphs.graph import Graph
from ..quiet import is_quiet


def export_program(graph: Graph) -> ExportedProgram:
    """Trace ``graph`` at the contract's traced lengths, with every axis of the contract free.

    The program takes its inputs by name, and holds the weights of the graph alone.

    Raises:
        ExportError: where PyTorch cannot.
    """
    contract = graph.contract
    inputs: dict[str, Any] = {name: torch.from_numpy(array) for name, array in example(contract).inputs.items()}
    module = copy.copy(graph.module)
    module._modules = {"model": untied(pruned(graph.module.model, graph.scopes))}
    dims = _dynamic_shapes(contract)
    return trace(module, module.arguments(inputs), module.arguments(dims), f"the {contract.graph} graph")


def trace(module: nn.Module, inputs: dict[str, Any], dims: dict[str, Any], what: str) -> ExportedProgram:
    """``module`` as a program.

    Args:
        module: takes ``inputs`` by name.
        inputs: tensors, or lists of them.
        dims: by input, which dimensions vary; see ``torch.export.export``.
        what: for the error.

    Raises:
        ExportError: where PyTorch cannot.
    """
    try:
        # PyTorch prints all of its graph where it gives up.
        with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()) if is_quiet() else contextlib.nullcontext():
            return torch.export.export(module, (), kwargs=inputs, dynamic_shapes=dims)
    except Exception as error:
        limits = dict(re.findall(r"(\w+) = Dim\('\w+'[^)]*max=(\d+)", str(error)))
        if limits:  # PyTorch says so in the last of many lines
            lengths = ", ".join(f'"{name}": {most}' for name, most in limits.items())
            raise ExportError(
                f"PyTorch could not export {what}: the model takes no more than {lengths}",
                f"say so in the contract: longest={{{lengths}}}",
            ) from error
        raise ExportError(
            f"PyTorch could not export {what}: {first_line(error)}", "run again with -v for the whole story"
        ) from error


def pruned(model: nn.Module, scopes: tuple[str, ...], prefix: str = "") -> nn.Module:
    """``model`` without the parts outside of ``scopes``, sharing the parameters of those that stay.

    Args:
        model: any module; it stays as it is.
        scopes: prefixes of state-dict names; empty keeps all.
        prefix: of the names in ``model`` itself.
    """
    if not scopes or prefix.startswith(scopes):
        return model
    kept = copy.copy(model)
    kept._modules = {
        name: child if child is None else pruned(child, scopes, f"{prefix}{name}.")
        for name, child in model._modules.items()
        if any(scope.startswith(f"{prefix}{name}.") or f"{prefix}{name}.".startswith(scope) for scope in scopes)
    }
    return kept


def untied(model: nn.Module) -> nn.Module:
    """``model`` with a parameter for each name, where names share one: tracing would keep one name of them.

    The parameters' memory stays the same, and so does ``model``.
    """
    named = [parameter for _, parameter in model.named_parameters(remove_duplicate=False)]
    if len({id(parameter) for parameter in named}) == len(named):
        return model
    return _separate(model, set())


def _separate(module: nn.Module, seen: set[int]) -> nn.Module:
    twin = copy.copy(module)
    twin._parameters = dict(module._parameters)
    for name, parameter in module._parameters.items():
        if parameter is not None and id(parameter) in seen:
            twin._parameters[name] = nn.Parameter(parameter.detach(), parameter.requires_grad)
        seen.add(id(parameter))
    twin._modules = {name: child and _separate(child, seen) for name, child in module._modules.items()}
    return twin


def _dynamic_shapes(contract: Contract) -> dict[str, dict[int, Any]]:
    """By input and dimension; a minimum of 1 is said, or torch.export would take batches of 2 and more only."""
    dims = {name: Dim(name, min=axis.minimum, max=axis.maximum) for name, axis in contract.axes.items()}
    return {
        spec.name: {
            index: dims[axis.name] if axis.times == 1 else axis.times * dims[axis.name]
            for index, axis in enumerate(spec.axes)
            if isinstance(axis, Axis)
        }
        for spec in contract.inputs
    }
