"""The eager PyTorch model as a runtime."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..cases.case import Array
from ..graphs.graph import Graph
from ..graphs.running import run_graph
from .runtime import Description, described


class Eager:
    """A graph, computed by the model in PyTorch without any export."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, for an array for each input."""
        outputs = run_graph(self.graph, inputs)
        return {spec.name: value.numpy() for spec, value in zip(self.graph.contract.outputs, outputs, strict=True)}

    def describe(self) -> Description:
        """PyTorch, with the tensors of the contract."""
        return described(self.graph.contract, "PyTorch", torch.__version__)
