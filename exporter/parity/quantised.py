"""What an int8 file is held against: the same model in PyTorch, with the weights that the file's integers stand for.

Two questions are kept apart. Without any rounding of activations, in float64, the file must be that model as exactly as
any other file is its own. And what runtimes give, which round the activations of each product to 8 bits, must be what
PyTorch gives that rounds them in the same way.

Float32 rounds a value that lies between two integers sometimes to the other one than float64 does. That is rare, but
one such value moves the outputs by far more than all else. So a case that fails, if few do, has its noise measured once
more by runs that do it in each product, with about one value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..cases.case import Case, small
from ..cases.identities import only
from ..formats.quantisation import LIMIT, LOOKUP_LIMIT, is_matrix, quantise
from ..formats.table import Format
from ..graphs.graph import Graph
from ..graphs.parameters import multiplied
from ..graphs.precision import memory_of
from ..runtimes.run import Run
from .stored import key_of

STEPS = 255  # between the smallest and the largest of 8 bits


@dataclass(frozen=True)
class Truth:
    """What runs of a file are held against.

    Attributes:
        key: of the stored cases.
        graph: computes the references.
        other: computes them with some activations rounded to the other side; None where none are rounded.
        plan: the cases.
        lifted: whether it is for lifted runs, and not for the others.
    """

    key: str
    graph: Graph
    other: Graph | None
    plan: Sequence[Case]
    lifted: bool

    def takes(self, run: Run) -> bool:
        """Whether the run is held against it."""
        return run.lifted == self.lifted


def truths(known: Format, graph: Graph, plan: Sequence[Case]) -> list[Truth]:
    """What the int8 file of ``graph`` is held against.

    The rounding of a value depends on all values that are rounded with it. So identities, such as that a sentence gives
    the same alone, hold without rounding only.
    """
    rounded, other = (replace(graph, within=partial(RoundedProducts, nudged)) for nudged in (False, True))
    return [
        Truth(key_of(known, graph.name), rounded, other, only(plan, lambda case: case.same_as is None), False),
        Truth(key_of(known, graph.name, lifted=True), graph, None, only(plan, small), True),
    ]


@contextmanager
def dequantised(model: nn.Module) -> Iterator[None]:
    """Inside the block the matrices of ``model`` have the values of their integers; afterwards their own.

    Raises:
        ExportError: where a weight is NaN or infinite.
    """
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    matrices = {
        name: tensor for name, tensor in tensors.items() if tensor.is_floating_point() and is_matrix(tensor.shape)
    }
    products = multiplied(model)
    own = [(tensor, tensor.data) for tensor in matrices.values()]
    shared: dict[tuple[object, ...], Tensor] = {}  # tensors in the same memory stay so
    try:
        for name, tensor in matrices.items():
            place = memory_of(tensor)
            if place not in shared:
                limit = LIMIT if name in products else LOOKUP_LIMIT
                shared[place] = torch.from_numpy(quantise(name, tensor.detach().numpy(), limit).floats())
        for tensor, data in own:
            tensor.data = shared[memory_of(data)]
        yield
    finally:
        for tensor, data in own:
            tensor.data = data


class RoundedProducts(TorchFunctionMode):
    """Rounds the activations of each product with a matrix as ``DynamicQuantizeLinear`` does, all together.

    Args:
        nudged: in float32, round about one of them to the other side.
    """

    def __init__(self, nudged: bool = False) -> None:
        super().__init__()
        self.nudged = nudged

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and is_matrix(args[1].shape):
            args = (rounded(args[0], self.nudged), *args[1:])
        return func(*args, **(kwargs or {}))


def rounded(x: Tensor, nudged: bool = False) -> Tensor:
    """``x`` in 256 steps from its least value to its largest, and at 0; ``nudged`` as in :class:`RoundedProducts`."""
    if not x.numel():
        return x
    low, high = x.min().clamp(max=0.0), x.max().clamp(min=0.0)
    step = (high - low) / STEPS
    step = torch.where(step == 0, torch.ones_like(step), step)
    zero = torch.round(-low / step).clamp(0, STEPS)
    places = x / step
    if nudged and x.dtype == torch.float32:
        places = places + _nudges(x)
    return (torch.clamp(torch.round(places) + zero, 0, STEPS) - zero) * step


def _nudges(x: Tensor) -> Tensor:
    """Uniform numbers, so small that about one of the values is rounded to the other side. They depend on the last bits
    of ``x``, which differ between runs, so that other runs round others.
    """
    seed = int(x.contiguous().view(torch.int32).sum(dtype=torch.int64)) & (2**63 - 1)
    generator = torch.Generator().manual_seed(seed)
    reach = min(0.5, 2 / x.numel())
    return (torch.rand(x.shape, generator=generator) * 2 - 1) * reach
