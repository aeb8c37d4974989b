"""Settings that no checkpoint holds: from an option, the vocabulary or the default, and recorded as assumptions."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

from ...transformer import TransformerConfig
from ..config import Assumption, ModelConfig
from ..errors import CheckpointError
from ..vocab import Vocabulary

ALWAYS = ("activation", "norm_first", "layer_norm_eps")
WITH_TOKENS = (*ALWAYS, "embedding_scale", "pad_id")
APPLY = {
    "transformer": ALWAYS,
    "translation": (*WITH_TOKENS, "bos_id", "eos_id"),
    "couplet": (*WITH_TOKENS, "bos_id", "eos_id"),
    "classification": (*WITH_TOKENS, "pooling"),
}
DEFAULTS = {field.name: field.default for cls in (TransformerConfig, ModelConfig) for field in fields(cls)}


def choose_settings(
    kind: str, d_model: int, given: dict[str, Any], vocabulary: Vocabulary | None
) -> tuple[dict[str, Any], list[Assumption]]:
    """Choose all settings of a model of this kind that its checkpoint does not hold.

    Args:
        kind: kind of the model, as in ``ModelConfig``.
        d_model: E.
        given: options by name; None means that the option is not given.
        vocabulary: vocabulary with special ids, if there is one.

    Returns:
        The settings by name, and an assumption for each of them.

    Raises:
        CheckpointError: if an option does not apply to this kind.
    """
    for name, value in given.items():
        if value is not None and name not in APPLY[kind]:
            raise CheckpointError(f"{name} does not apply to a {kind} model", f"leave out {option_name(name)}")
    ids = vocabulary.special_ids(with_padding=given.get("pad_id") is None) if vocabulary else {}
    values: dict[str, Any] = {}
    assumed = []
    for name in APPLY[kind]:
        value, source = DEFAULTS[name], "default"
        if given.get(name) is not None:
            value, source = given[name], "option"
        elif vocabulary and name in ids:
            value, source = ids[name], Path(vocabulary.name).name
        values[name] = value
        shown = math.sqrt(d_model) if name == "embedding_scale" and value is None else value
        assumed.append(Assumption(name, shown, source))
    return values, assumed


def check_heads(d_model: int, nhead: int | None) -> int:
    """``nhead``, after a check that it is given and divides ``d_model``.

    Raises:
        CheckpointError: if it is None or does not divide ``d_model``.
    """
    likely = likely_heads(d_model)
    choices = f"{', '.join(map(str, likely[:-1]))} or {likely[-1]}" if len(likely) > 1 else str(likely[0])
    if nhead is None:
        raise CheckpointError(
            f"the number of attention heads is not in a checkpoint (for d_model {d_model} it may be {choices})",
            "pass --nhead N",
        )
    if nhead < 1 or d_model % nhead != 0:
        raise CheckpointError(
            f"{nhead} heads do not divide d_model, which is {d_model}", f"pass --nhead N, such as {choices}"
        )
    return nhead


def likely_heads(d_model: int) -> list[int]:
    """Head counts that are likely for ``d_model``: those with heads 16 to 128 wide, in small models from 4 on."""
    least = 16 if d_model >= 128 else 4
    likely = [heads for heads in range(1, d_model + 1) if d_model % heads == 0 and least <= d_model // heads <= 128]
    return likely or [heads for heads in range(1, min(d_model, 16) + 1) if d_model % heads == 0]


def option_name(name: str) -> str:
    """The option ``name`` as the command line spells it."""
    return f"--{name.replace('_', '-')}"
