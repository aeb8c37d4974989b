"""What a quantised file is held against: the model in PyTorch with the weights that the file's integers stand for.

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
from ..formats.quantisation import BLOCK, Rule, quantise
from ..formats.table import Format
from ..graphs.graph import Graph
from ..graphs.parameters import multiplied, named_tensors
from ..graphs.precision import memory_of
from ..runtimes.run import Run
from .stored import key_of

FUSING = (torch.cat, Tensor.detach, Tensor.mul, Tensor.clone)  # by these the model makes a weight of others
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


def truths(known: Format, rule: Rule, graph: Graph, plan: Sequence[Case]) -> list[Truth]:
    """What the file of ``graph`` in a format is held against, whose weights are quantised by ``rule``.

    In int8 the rounding of a value depends on all values that are rounded with it. So identities, such as that a
    sentence gives the same alone, hold without rounding only.
    """
    model = graph.module.model
    rounded, other = (replace(graph, within=partial(RoundedProducts, rule, model, nudged)) for nudged in (False, True))
    return [
        Truth(key_of(known, graph.name), rounded, other, only(plan, lambda case: case.same_as is None), False),
        Truth(key_of(known, graph.name, lifted=True), graph, None, only(plan, small), True),
    ]


@contextmanager
def dequantised(model: nn.Module, rule: Rule) -> Iterator[None]:
    """Inside the block the matrices of ``model`` have the values of their integers; afterwards their own.

    Raises:
        ExportError: where a weight is NaN or infinite.
    """
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    matrices = {
        name: tensor
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and rule.takes(name, tensor.shape)
    }
    looked_up = tensors.keys() - multiplied(model)
    own = [(tensor, tensor.data) for tensor in matrices.values()]
    shared: dict[tuple[object, ...], Tensor] = {}  # tensors in the same memory stay so
    try:
        for name, tensor in matrices.items():
            place = memory_of(tensor)
            if place not in shared:
                shared[place] = torch.from_numpy(quantise(name, tensor.detach().numpy(), rule, looked_up).floats)
        for tensor, data in own:
            tensor.data = shared[memory_of(data)]
        yield
    finally:
        for tensor, data in own:
            tensor.data = data


class RoundedProducts(TorchFunctionMode):
    """Rounds the activations of each product with a matrix as runtimes do.

    Args:
        rule: of the matrices.
        model: they are its own. Those that the rule keeps are in products without rounding, and what the model makes
            of them, too.
        nudged: in float32, round about one of them to the other side.
    """

    def __init__(self, rule: Rule, model: nn.Module, nudged: bool = False) -> None:
        super().__init__()
        self.rule = rule
        self.nudged = nudged
        tensors = named_tensors(model) if rule.kept else {}
        self._kept = {tensors[name].data_ptr() for name in rule.kept & tensors.keys()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._kept and func in FUSING:
            result = func(*args, **(kwargs or {}))
            tensors = args[0] if func is torch.cat else args[:1]
            if all(map(self._is_kept, tensors)):
                result.is_kept = True
            return result
        if func is F.linear and self.rule.fits(args[1].shape) and not self._is_kept(args[1]):
            x, matrix = ROUNDED[self.rule.precision](args[0], self.nudged), args[1]
            if self.rule.precision == "int4" and x.dtype == torch.float32:
                shifts = _shifts(matrix)
                shifted = matrix + shifts.repeat_interleave(BLOCK, 1)[:, : x.shape[-1]]
                return func(x, shifted, *args[2:]) - F.linear(_in_blocks(x).sum(dim=-1), shifts)
            args = (x, *args[1:])
        return func(*args, **(kwargs or {}))

    def _is_kept(self, tensor: Tensor) -> bool:
        return hasattr(tensor, "is_kept") or tensor.data_ptr() in self._kept


def rounded(x: Tensor, nudged: bool = False) -> Tensor:
    """All of ``x`` in 256 steps from its least value to its largest, and at 0, as ``DynamicQuantizeLinear`` does it;
    ``nudged`` as in :class:`RoundedProducts`.
    """
    if not x.numel():
        return x
    low, high = x.min().clamp(max=0.0), x.max().clamp(min=0.0)
    step = (high - low) / STEPS
    step = torch.where(step == 0, torch.ones_like(step), step)
    zero = torch.round(-low / step).clamp(0, STEPS)
    return (torch.clamp(torch.round(_places(x, step, nudged)) + zero, 0, STEPS) - zero) * step


def rounded_blocks(x: Tensor, nudged: bool = False) -> Tensor:
    """Each block of 32 values in the last dimension of ``x`` in 255 steps around 0, as ``MatMulNBits`` does it."""
    if not x.numel():
        return x
    blocks = _in_blocks(x)
    step = blocks.abs().amax(dim=-1, keepdim=True) / (STEPS // 2)
    step = torch.where(step == 0, torch.ones_like(step), step)
    found = torch.round(_places(blocks, step, nudged)) * step
    return found.flatten(-2)[..., : x.shape[-1]]


def _shifts(matrix: Tensor) -> Tensor:
    """What ``MatMulNBits`` adds to each weight, 8 steps of its block, as ``[R, blocks]``: its integers have no sign. It
    takes that times the sum of the block's activations from the product again, and in float32 the difference is less
    exact than a product with the weights themselves.
    """
    blocks = _in_blocks(matrix)
    largest = blocks.gather(-1, blocks.abs().argmax(dim=-1, keepdim=True))  # it is -8
    return -largest.squeeze(-1)


def _in_blocks(x: Tensor) -> Tensor:
    return F.pad(x, (0, -x.shape[-1] % BLOCK)).reshape(*x.shape[:-1], -1, BLOCK)


ROUNDED = {"int8": rounded, "int4": rounded_blocks}


def _places(x: Tensor, step: Tensor, nudged: bool) -> Tensor:
    places = x / step
    return places + _nudges(x) if nudged and x.dtype == torch.float32 else places


def _nudges(x: Tensor) -> Tensor:
    """Uniform numbers, so small that about one of the values is rounded to the other side. They depend on the last bits
    of ``x``, which differ between runs, so that other runs round others.
    """
    seed = int(x.contiguous().view(torch.int32).sum(dtype=torch.int64)) & (2**63 - 1)
    generator = torch.Generator().manual_seed(seed)
    reach = min(0.5, 2 / x.numel())
    return (torch.rand(x.shape, generator=generator) * 2 - 1) * reach
