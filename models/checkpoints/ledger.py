"""The ledger of a checkpoint: which of its tensors becomes which tensor of the model, and which have no place yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..config import Assumption
from ..errors import CheckpointError
from .values import DIVERGED, SAVE, copy_float32, is_finite, unsuited

SHOWN = 5


@dataclass
class Ledger:
    """The tensors of a checkpoint and their places in a model.

    A name in the model is called ``ours``, a name in the checkpoint ``theirs``.

    Attributes:
        left: tensors of the checkpoint that have no place yet, by their names in the checkpoint.
        placed: tensors of the model, by their names in the model.
        origins: for each name in ``placed``, the name of the tensor in the checkpoint.
        asked: names in the model for which the caller named a tensor with ``--key``.
        assumed: settings that are not in the checkpoint.
    """

    left: dict[str, Tensor]
    placed: dict[str, Tensor] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    assumed: list[Assumption] = field(default_factory=list)

    def place(self, ours: str, theirs: str, tensor: Tensor) -> None:
        """Place ``tensor``, which is ``theirs`` or a part of it, at ``ours``."""
        self.placed[ours] = tensor
        self.origins[ours] = theirs

    def take(self, theirs: str) -> None:
        """Remove ``theirs`` from the tensors without a place. Before that it may be placed more than once."""
        self.left.pop(theirs, None)

    def nest(self, prefix: str) -> None:
        """Put ``prefix`` before the names of all tensors in both stacks."""
        for ours in [name for name in self.placed if name.startswith(("encoder.", "decoder."))]:
            self.place(prefix + ours, self.origins.pop(ours), self.placed.pop(ours))

    def assume(self, name: str, value: Any, source: str) -> None:
        """Record a setting that is not in the checkpoint."""
        self.assumed.append(Assumption(name, value, source))


def check_complete(ledger: Ledger, expected: Mapping[str, Tensor]) -> None:
    """Check that ``ledger.placed`` has exactly the names and shapes of ``expected``, and that no tensor is left.

    Raises:
        CheckpointError: if tensors are missing, unexpected or of another shape; the message names them.
    """
    missing = [name for name in expected if name not in ledger.placed]
    extra = [describe(name, tensor) for name, tensor in ledger.left.items()]
    extra += [describe(ledger.origins[ours], ledger.placed[ours]) for ours in ledger.placed if ours not in expected]
    if missing or extra:
        raise_mismatch(missing, extra)
    for name, tensor in expected.items():
        if ledger.placed[name].shape != tensor.shape:
            raise CheckpointError(
                f"{ledger.origins[name]} gives {name} the shape {list(ledger.placed[name].shape)}, "
                f"the rest of the checkpoint says {list(tensor.shape)}",
                "all tensors must agree on d_model, dim_feedforward and the sizes of the vocabularies",
            )


def raise_mismatch(missing: list[str], extra: list[str]) -> NoReturn:
    """Raise an error for ``missing`` tensors (names in the model) and ``extra`` ones (names, shapes in the file)."""
    message = f"the checkpoint lacks {listed(missing, 'tensor')}" if missing else "the checkpoint"
    if extra:
        message += f"{' and' if missing else ''} has {listed(extra, 'unexpected tensor')}"
    stray = extra[0].split(" ")[0] if extra else ""
    if missing and extra:
        hint = f"if one is the other under its own name, say so: --key {missing[0]}={stray}"
    elif missing:
        hint = f"--key {missing[0]}=NAME names a tensor that stands in for it; a model of another kind: --model"
    else:
        hint = f"if the model does without: --key ignore={stray}"
    raise CheckpointError(message, hint)


def to_float32(ledger: Ledger) -> dict[str, Tensor]:
    """Float32 copies of the tensors in ``ledger.placed``, which is emptied to keep memory low.

    Raises:
        CheckpointError: if tensors are not floats, or have values that are not finite; the message names them.
    """
    odd = [f"{ledger.origins[name]} ({unsuited(tensor)})" for name, tensor in ledger.placed.items() if unsuited(tensor)]
    if odd:
        raise CheckpointError(f"weights must be plain floats: {listed(odd, 'tensor')}", SAVE)
    state: dict[str, Tensor] = {}
    dtypes: set[torch.dtype] = set()
    broken: dict[str, int] = {}
    for name in list(ledger.placed):
        tensor = ledger.placed.pop(name)
        dtypes.add(tensor.dtype)
        state[name] = copy_float32(tensor)
        if not is_finite(state[name]):
            theirs = ledger.origins[name]  # the parts of a packed tensor have one origin
            broken[theirs] = broken.get(theirs, 0) + int((~state[name].isfinite()).sum())
    if broken:
        counted = [f"{theirs} ({count:,} value{'' if count == 1 else 's'})" for theirs, count in broken.items()]
        raise CheckpointError(
            f"NaN or infinite values in {listed(counted, 'tensor')}",
            DIVERGED,
        )
    for dtype in sorted(dtypes - {torch.float32}, key=str):
        how = "rounded" if dtype == torch.float64 else "widened, exact"
        ledger.assume("weights", f"{str(dtype).removeprefix('torch.')} -> float32", how)
    return state


def describe(name: str, tensor: Tensor) -> str:
    """``generator.weight [8, 4]``"""
    return f"{name} {list(tensor.shape)}"


def listed(names: list[str], noun: str) -> str:
    """``7 tensors: a, b, c, d, e, …``: the number of names and the first of them."""
    shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'}: {shown}"
