"""Running ``torch.export`` files in PyTorch. Opening one runs a program: open only files from sources you trust."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from ..cases.case import small
from ..contracts.contract import Axis, Contract, TensorSpec
from ..formats import pt2
from ..formats.torch_archive import check_program
from ..formats.torch_files import stored_contract
from ..quiet import quiet
from .run import Run
from .runtime import Description
from .torch_file import TorchRuntime

Dimensions = tuple[str | int, ...]


class ExportedGraph(TorchRuntime):
    """A graph, open as a ``torch.export`` program."""

    def __init__(self, program: ExportedProgram, contract: Contract | None, lifted: bool = False) -> None:
        module = program.module()
        # forward takes the inputs by name whichever way the program was made to be called.
        super().__init__((_lift(module) if lifted else module).forward, contract, lifted)
        self.program = program
        self.names = list(inspect.signature(module.forward).parameters)

    @classmethod
    def open(cls, path: str | Path, *, lifted: bool = False) -> ExportedGraph:
        """Load the file at ``path``, which must come from a source that you trust.

        Args:
            path: the file.
            lifted: compute in float64.

        Raises:
            BundleError: if it is no such archive, is damaged, or contains Python code.
        """
        program = pt2.load(Path(path))
        with quiet():
            return cls(program, stored_contract(Path(path)), lifted)

    def describe(self) -> Description:
        """PyTorch, its version, and the tensors of the graph.

        Dimensions that vary have their names in the contract, if they vary as the contract says.
        """
        nodes = {node.name: node for node in self.program.graph.nodes}
        signature = self.program.graph_signature
        inputs = [nodes[str(name)].meta["val"] for name in signature.user_inputs]
        outputs = [nodes[str(name)].meta["val"] for name in signature.user_outputs]
        labels = _labels(self.program, self.contract.inputs if self.contract else (), self.names, inputs)
        described_inputs, described_outputs = (
            {name: (self._dtype(value), _dimensions(value, labels)) for name, value in zip(names, values, strict=True)}
            for names, values in ((self.names, inputs), (self.output_names(len(outputs)), outputs))
        )
        name = "torch.export, float64" if self.lifted else "torch.export"
        return Description(name, torch.__version__, described_inputs, described_outputs)

    def _dtype(self, value: torch.Tensor) -> str:
        return str(_lifted(value.dtype) if self.lifted else value.dtype).removeprefix("torch.")


def check(path: Path) -> None:
    """Check a file before it is opened; raise ``BundleError`` if it is no such archive, or contains Python code."""
    check_program(path)


def runs(verbose: bool = False) -> list[Run]:
    """The ways to run a file. The last one, lifted to float64, is the check of structure."""
    lifted = partial(ExportedGraph.open, lifted=True)
    return [
        Run("torch.export", ExportedGraph.open),
        Run("torch.export, float64", lifted, takes=small, lifted=True),
    ]


def _labels(
    program: ExportedProgram, specs: tuple[TensorSpec, ...], names: list[str], values: list[torch.Tensor]
) -> dict[str, str]:
    """For each symbol of the program the name of its axis in the contract.

    A symbol gets one axis, and an axis one symbol. So the description shows if the export merged two axes, or split
    one. A range that is narrower than in the contract is added to the name, so that it shows too.
    """
    found = dict(zip(names, values, strict=True))
    labels: dict[str, str] = {}
    taken: set[str] = set()
    for spec in specs:
        shape = found[spec.name].shape if spec.name in found else ()
        for axis, size in zip(spec.axes, shape, strict=False):
            if not isinstance(axis, Axis) or not str(size).isidentifier():
                continue
            if axis.times == 1 and axis.name not in taken and str(size) not in labels:
                labels[str(size)] = _with_range(program, size, axis)
                taken.add(axis.name)
    return labels


def _with_range(program: ExportedProgram, size: Any, axis: Axis) -> str:
    limits = program.range_constraints.get(size.node.expr)
    if limits is None:
        return axis.name
    lower, upper = (int(limit) if limit.is_Integer else None for limit in (limits.lower, limits.upper))
    wide = (lower is None or lower <= axis.minimum) and (
        upper is None or (axis.maximum is not None and upper >= axis.maximum)
    )
    return axis.name if wide else f"{axis.name} from {lower} to {upper}"


def _dimensions(value: torch.Tensor, labels: Mapping[str, str]) -> Dimensions:
    return tuple(size if isinstance(size, int) else _label(str(size), labels) for size in value.shape)


def _label(expression: str, labels: Mapping[str, str]) -> str:
    """``s7`` -> ``batch``, ``4*s7`` -> ``4*batch``."""
    times, star, symbol = expression.rpartition("*")
    return times + star + labels.get(symbol, symbol)


def _lift(module: fx.GraphModule) -> fx.GraphModule:
    """``module`` in float64: its weights, and all dtypes in its nodes."""
    for node in module.graph.nodes:
        node.args = fx.node.map_aggregate(node.args, _lifted)
        node.kwargs = fx.node.map_aggregate(node.kwargs, _lifted)
    module.recompile()
    return module.double()


def _lifted(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
