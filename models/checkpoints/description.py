"""What a checkpoint says of itself, and what it cannot: without loading it into a model."""

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
    """A checkpoint, described.

    Attributes:
        kind: of the model that it holds, as in ``ModelConfig``.
        layout: how it stores attention: ``current``, ``packed`` or ``legacy``.
        parameters: how many values it holds.
        sizes: what its shapes say.
        likely_heads: head counts to choose from, as it does not say.
        assumed: what an export would assume, and where from.
        unknown_tensors: those that have no place.
        bad_weights: weights that an export refuses, as :class:`~mytx.models.checkpoints.values.BadWeight` has them.
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
        """As plain values for JSON."""
        return asdict(self)


def describe_checkpoint(path: str | Path, keys: Keys = ()) -> CheckpointDescription:
    """Describe the checkpoint at ``path``; ``keys`` as in :func:`~mytx.models.load_checkpoint`.

    Raises:
        CheckpointError: where it cannot be read, or holds nothing that is known.
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
    """Those of a checkpoint's ``tensors`` that are weights: placed in the model, or left with a name that says so.

    Buffers that no model has a place for, such as position ids or a count of batches, are none.
    """
    placed = {ledger.origins[ours] for ours in ledger.placed}
    return {
        name: tensor
        for name, tensor in tensors.items()
        if name in placed or (name in ledger.left and name.endswith("weight"))
    }


def layout_of(names: list[str]) -> str:
    """How a state dict with the keys ``names`` stores attention."""
    if any(name.endswith("in_proj_weight") for name in names):
        return "packed"
    return "legacy" if any(name.endswith("q_proj_weight") for name in names) else "current"
