"""Parts of unusual models, and the contract of a graph from ids to numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mytx.exporter.contracts import CustomGraph, graph, ids, values
from mytx.exporter.contracts.contract import TensorSpec


def whole(model: nn.Module, *inputs: TensorSpec, **more: Any) -> CustomGraph:
    """The graph of a model from ids to ``y [batch, source, 4]``."""
    specs = inputs or (ids("x", ["batch", "source"], 20),)
    return graph("full", "forward", specs, [values("y", ["batch", "source", 4])], **more)


class Embedded(nn.Module):
    """Ids to four numbers each, and room for what others add."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(20, 4)


class WithoutReplacing(Embedded):
    def forward(self, x: Tensor) -> Tensor:
        return self.table(x)


class Tables(Embedded):
    """A buffer that is not saved, and a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.randn(80, 4), persistent=False)
        self.more = torch.randn(80, 4)
        self.list = [torch.randn(80, 4)]

    def forward(self, x: Tensor) -> Tensor:
        length = x.size(1)
        return self.table(x) + self.places[:length] + self.more[:length] + self.list[0][:length]
