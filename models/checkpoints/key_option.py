"""The option ``--key NAME=KEY``: the caller says which tensor of the checkpoint is which part of the model."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence

from ..errors import CheckpointError
from .ledger import Ledger
from .names import HEAD, HEAD_BIAS, OUTER, ROLES, STACK_NAME
from .state_dict import plain_name

Keys = Mapping[str, str | Sequence[str]] | Sequence[str]

IGNORE = "ignore"
EXAMPLE = "as in --key source_embedding=embed.weight"


def apply_keys(ledger: Ledger, keys: Keys) -> None:
    """Place or drop the tensors that ``keys`` name.

    Args:
        ledger: ledger of the checkpoint; it is changed.
        keys: pairs of a name and a tensor of the checkpoint, as a mapping or as ``NAME=KEY`` strings. NAME is a role
            (:data:`~mytx.models.checkpoints.names.ROLES`), ``ignore`` (repeatable; KEY may contain ``*``), or a name
            in the state dict of a mytx model.

    Raises:
        CheckpointError: if a pair is malformed, unknown or given twice.
    """
    pairs = split_pairs(keys)
    ignored = [plain_name(theirs) for name, theirs in pairs if name == IGNORE]
    for name, key in pairs:
        if name == IGNORE:
            continue
        ours, theirs = our_name(name), plain_name(key)
        if theirs not in ledger.left:
            raise unknown_tensor(ledger, name, key)
        if ours in ledger.placed:
            raise CheckpointError(f"--key names {name} twice: {ledger.origins[ours]} and {theirs}", "keep one of them")
        if any(fnmatch.fnmatchcase(theirs, pattern) for pattern in ignored):
            raise CheckpointError(f"--key uses {theirs} as {name} and ignores it", "keep one of them")
        ledger.place(ours, theirs, ledger.left[theirs])
        ledger.asked.add(ours)
        ledger.assume(name, theirs, "option")
        bias = theirs.removesuffix("weight") + "bias"
        if name == "output_projection" and bias != theirs + "bias" and bias in ledger.left:
            ledger.place(HEAD_BIAS, bias, ledger.left[bias])
    for pattern in ignored:
        dropped = [theirs for theirs in ledger.left if fnmatch.fnmatchcase(theirs, pattern)]
        if not dropped:
            raise unknown_tensor(ledger, IGNORE, pattern)
        for theirs in dropped:
            ledger.take(theirs)
            ledger.assume(IGNORE, theirs, "option")
    for ours, theirs in ledger.origins.items():  # only now, because two names may use one tensor
        if ours != HEAD or HEAD_BIAS in ledger.placed:  # without a bias it may be an embedding too
            ledger.take(theirs)


def split_pairs(keys: Keys) -> list[tuple[str, str]]:
    """``keys`` as pairs.

    Raises:
        CheckpointError: if one is not of the form NAME=KEY.
    """
    if isinstance(keys, Mapping):
        return [(name, key) for name, value in keys.items() for key in ([value] if isinstance(value, str) else value)]
    pairs = []
    for text in [keys] if isinstance(keys, str) else keys:
        name, equals, key = text.partition("=")
        if not (equals and name.strip() and key.strip()):
            raise CheckpointError(f"--key expects NAME=KEY, got {text!r}", EXAMPLE)
        pairs.append((name.strip(), key.strip()))
    return pairs


def our_name(name: str) -> str:
    """The name in the ledger for ``name``, which is a role or a name in the state dict of a mytx model.

    Raises:
        CheckpointError: if it is neither.
    """
    ours = ROLES.get(name, name).removeprefix("my_transformer.")
    if ours not in OUTER and not STACK_NAME.fullmatch(ours):
        raise CheckpointError(
            f"--key does not know the name {name!r}",
            f"use {', '.join(ROLES)}, {IGNORE}, or a name such as my_transformer.encoder.norm.weight",
        )
    return ours


def unknown_tensor(ledger: Ledger, name: str, key: str) -> CheckpointError:
    """The error for a ``key`` that is not in the checkpoint, with the most similar names in it."""
    near = difflib.get_close_matches(key, ledger.left, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(list(ledger.left)[:5])}, …"
    return CheckpointError(f"--key {name}={key}: the checkpoint has no tensor {key}", hint)
