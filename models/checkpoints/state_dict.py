"""Finds the state dict in the objects of a checkpoint, and removes the prefixes of wrappers from its names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import CheckpointError
from .names import LAYER

#: Keys under which checkpoints hold weights, best first. A bare state dict is better than all of them.
PREFERRED = (
    "model", "model_state_dict", "state_dict", "model_state", "net", "network", "module", "transformer", "weights",
    "params", "ema", "model_ema", "ema_model", "ema_state_dict",
)  # fmt: skip

#: Segments that wrappers add to names: DataParallel (and DeepSpeed, AveragedModel), torch.compile.
WRAPPERS = ("module", "_orig_mod")


@dataclass(frozen=True)
class StateDict:
    """The state dict that was found in a checkpoint.

    Attributes:
        tensors: tensors by their names without the segments of wrappers.
        place: its place in the checkpoint: ``model.state_dict``; empty for a bare state dict.
        others: places of other weights in the checkpoint, which are not used.
    """

    tensors: dict[str, Tensor]
    place: str = ""
    others: tuple[str, ...] = ()


def unwrap(content: Any) -> StateDict:
    """The state dict in ``content``: bare, or under one or two keys such as ``model`` or ``state_dict``.

    State dicts with transformer layers come first; among several, :data:`PREFERRED` decides.

    Raises:
        CheckpointError: if there is none, or if there are several and none of them is preferred.
    """
    found = state_dicts(content)
    if not found:
        raise CheckpointError(
            f"the checkpoint holds no named tensors (it is a {type(content).__name__})",
            'a state dict is expected: torch.save(model.state_dict(), "weights.pt")',
        )
    layered = {place: tensors for place, tensors in found.items() if any(map(LAYER.match, tensors))}
    ranked = sorted(layered or found, key=rank)
    equal = [place for place in layered if rank(place) == rank(ranked[0])]
    if len(equal) > 1:
        raise CheckpointError(
            f"the checkpoint holds {len(equal)} models: {', '.join(equal)}",
            f'save the one that is meant alone: torch.save(checkpoint["{equal[0]}"], "weights.pt")',
        )
    chosen = ranked[0]
    others = [place for place in sorted(found, key=rank) if place != chosen and has_weights(found[place])]
    return StateDict(plain_names(found[chosen]), chosen, tuple(others))


def has_weights(tensors: dict[str, Tensor]) -> bool:
    """Whether a tensor has two or more dimensions; a step counter or a loss has none."""
    return any(tensor.dim() > 1 for tensor in tensors.values())


def state_dicts(content: Any, place: str = "", depth: int = 2) -> dict[str, dict[str, Tensor]]:
    """All mappings in ``content`` that hold named tensors, by their place, at most ``depth`` keys deep."""
    if not isinstance(content, Mapping):
        return {}
    named = {name: value for name, value in content.items() if isinstance(name, str)}
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    found = {place: tensors} if tensors else {}
    if depth > 0:
        for name, value in named.items():
            found.update(state_dicts(value, f"{place}.{name}" if place else name, depth - 1))
    return found


def rank(place: str) -> tuple[int, ...]:
    """A sort key for places, by preference. It is equal for two places if none of them is preferred."""
    segments = place.split(".") if place else []
    return tuple(PREFERRED.index(part) if part in PREFERRED else len(PREFERRED) for part in segments)


def plain_name(name: str) -> str:
    """``name`` without the segments of wrappers: ``module.encoder.…`` -> ``encoder.…``."""
    *path, last = name.split(".")
    return ".".join([part for part in path if part not in WRAPPERS] + [last])


def plain_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """``tensors`` by their names without the segments of wrappers.

    Raises:
        CheckpointError: if two tensors would get the same name.
    """
    plain: dict[str, Tensor] = {}
    origins: dict[str, str] = {}
    for name, tensor in tensors.items():
        short = plain_name(name)
        if short in plain:
            raise CheckpointError(
                f"{origins[short]} and {name} are the same tensor's name once wrappers are taken off",
                "save the unwrapped model's state dict: model.module.state_dict()",
            )
        plain[short] = tensor
        origins[short] = name
    return plain
