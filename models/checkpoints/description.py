"""Describes a checkpoint, with what it does not hold, without building its model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from .assumptions import choose_settings, likely_heads
from .embeddings_and_head import place_outer
from .key_option import Keys, apply_keys
from .layers import place_layers
from .ledger import Ledger
from .load import read_tensors, read_vocab, rows
from .names import CLASSIFIER, HEAD, POSITIONS, SHARED, SOURCE
from .values import bad_weights


@dataclass(frozen=True)
class CheckpointDescription:
    """The description of a checkpoint.

    Attributes:
        kind: kind of the model, as in ``ModelConfig``.
        layout: how attention is stored: ``current``, ``packed`` or ``legacy``.
        parameters: number of values in all tensors.
        sizes: the sizes that follow from the shapes.
        likely_heads: likely head counts, because a checkpoint does not hold it.
        assumed: settings that an export would assume, with their origin.
        unknown_tensors: names of tensors that have no place in the model.
        bad_weights: weights that an export refuses, with the fields of
            :class:`~mytx.models.checkpoints.values.BadWeight`.
    """

    kind: str
    layout: str
    parameters: int
    sizes: dict[str, Any]
    likely_heads: list[int]
    assumed: list[dict[str, Any]]
    unknown_tensors: list[str]
    bad_weights: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def describe_checkpoint(path: str | Path, keys: Keys = ()) -> CheckpointDescription:
    """Describe the checkpoint at ``path``. ``keys`` are those of :func:`~mytx.models.load_checkpoint`.

    Raises:
        CheckpointError: if it cannot be read, or holds no model that mytx knows.
    """
    path = Path(path)
    ledger = read_tensors(path)
    tensors = dict(ledger.left)
    parameters = sum(tensor.numel() for tensor in tensors.values())
    apply_keys(ledger, keys)
    sizes = place_layers(ledger)
    kind = place_outer(ledger, sizes.d_model, has_decoder=sizes.num_decoder_layers > 0)
    values = dict(vars(sizes))
    if kind != "transformer":
        values["src_vocab_size"] = rows(ledger, SHARED) or rows(ledger, SOURCE)
        values["max_length"] = rows(ledger, POSITIONS) or None
    if kind in ("translation", "couplet"):
        values["tgt_vocab_size"] = rows(ledger, HEAD)
    if kind == "classification":
        values["num_classification"] = rows(ledger, CLASSIFIER[2])
    _, assumed = choose_settings(kind, sizes.d_model, {}, read_vocab(kind, path, None))
    return CheckpointDescription(
        kind=kind,
        layout=layout_of(list(tensors)),
        parameters=parameters,
        sizes=values,
        likely_heads=likely_heads(sizes.d_model),
        assumed=[asdict(item) for item in [*assumed, *ledger.assumed]],
        unknown_tensors=sorted(ledger.left),
        bad_weights=[asdict(bad) for bad in bad_weights(weights_of(ledger, tensors))],
    )


def weights_of(ledger: Ledger, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights among ``tensors``: those with a place in the model, or with a name like ``weight``.

    Buffers without a place in the model, such as position ids or ``num_batches_tracked``, are not weights.
    """
    placed = {ledger.origins[ours] for ours in ledger.placed}
    return {
        name: tensor
        for name, tensor in tensors.items()
        if name in placed or (name in ledger.left and name.endswith("weight"))
    }


def layout_of(names: list[str]) -> str:
    """The layout of the attention weights in a state dict with these keys."""
    if any(name.endswith("in_proj_weight") for name in names):
        return "packed"
    return "legacy" if any(name.endswith("q_proj_weight") for name in names) else "current"
