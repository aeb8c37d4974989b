"""Places the tensors of the layers, in any of the known layouts, and reads the sizes from their shapes."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import CheckpointError
from .ledger import Ledger, describe, listed, raise_mismatch
from .names import LAYER, STACK_NAME

STACKS = ("encoder", "decoder")
PROJECTIONS = ("q_proj", "k_proj", "v_proj")
PACKED = re.compile(r"(?P<block>.*(?:self_attn|multihead_attn))\.in_proj_(?P<what>weight|bias)")
LEGACY = re.compile(r"(?P<block>.*(?:self_attn|multihead_attn))\.(?P<projection>[qkv]_proj)_weight")


@dataclass(frozen=True)
class Sizes:
    """Sizes that follow from the shapes of the layers; the names are those of ``TransformerConfig``."""

    d_model: int
    dim_feedforward: int
    num_encoder_layers: int
    num_decoder_layers: int
    final_norm: bool
    bias: bool


def place_layers(ledger: Ledger) -> Sizes:
    """Place the tensors of both stacks and read the sizes from them. Each attention block may have its own layout:

    - current: ``q_proj.weight``, ``q_proj.bias``, …
    - packed, as in ``torch.nn.MultiheadAttention``: ``in_proj_weight [3E, E]``, ``in_proj_bias [3E]``
    - legacy: ``q_proj_weight``, …, without a bias; biases of zero are exact

    Raises:
        CheckpointError: if there are no layers or two transformers, or if a layer or one of the final norms is missing.
    """
    legacy: dict[str, int] = {}
    for stack, outer in find_stacks(ledger).items():
        for theirs in [name for name in ledger.left if name.startswith(outer)]:
            place_one(ledger, legacy, theirs, f"{stack}.{theirs.removeprefix(outer)}")
    sizes = read_sizes(ledger)
    if sizes.bias:
        zero_biases(ledger, legacy)
    return sizes


def find_stacks(ledger: Ledger) -> dict[str, str]:
    """The prefix before ``layers.N.…`` for each stack: ``{"encoder": "transformer.encoder."}``.

    Raises:
        CheckpointError: if a stack has several prefixes.
    """
    prefixes: dict[str, list[str]] = {stack: [] for stack in STACKS}
    for name in ledger.left:
        match = LAYER.match(name)
        if match:
            prefix = f"{match['outer']}{match['stack']}."
            if prefix not in prefixes[match["stack"]]:
                prefixes[match["stack"]].append(prefix)
    for stack, several in prefixes.items():
        if len(several) > 1:
            raise CheckpointError(
                f"the checkpoint has {len(several)} {stack}s: {', '.join(several)}",
                f'leave one out: --key "ignore={several[1]}*"',
            )
    return {stack: several[0] for stack, several in prefixes.items() if several}


def place_one(ledger: Ledger, legacy: dict[str, int], theirs: str, ours: str) -> None:
    """Place the tensor ``theirs`` of a stack. ``legacy`` collects the width of each block in the legacy layout."""
    tensor = ledger.left[theirs]
    packed, raw = PACKED.fullmatch(ours), LEGACY.fullmatch(ours)
    pieces: dict[str, Tensor] = {}
    if packed and tensor.dim() > 0:
        if tensor.size(0) % 3 != 0:
            raise CheckpointError(f"{describe(theirs, tensor)} does not split into query, key and value", "3E expected")
        names = [f"{packed['block']}.{projection}.{packed['what']}" for projection in PROJECTIONS]
        pieces = dict(zip(names, tensor.chunk(3), strict=True))
    elif raw:
        pieces = {f"{raw['block']}.{raw['projection']}.weight": tensor}
        legacy[raw["block"]] = tensor.shape[0] if tensor.dim() else 0
    elif STACK_NAME.fullmatch(ours):
        pieces = {ours: tensor}
    if pieces and not any(name in ledger.placed for name in pieces):
        for name, piece in pieces.items():
            ledger.place(name, theirs, piece)
        ledger.take(theirs)


def zero_biases(ledger: Ledger, legacy: dict[str, int]) -> None:
    """Place zeros for the query, key and value biases, which the legacy layout does not have."""
    names = [(f"{block}.{projection}.bias", width) for block, width in legacy.items() for projection in PROJECTIONS]
    absent = [(name, width) for name, width in names if name not in ledger.placed]
    for name, width in absent:
        ledger.place(name, "the legacy layout, without a bias,", torch.zeros(width))
    if absent:
        ledger.assume("query, key and value biases", 0.0, "exact: the legacy layout has none")


def read_sizes(ledger: Ledger) -> Sizes:
    """The sizes of the placed layers.

    Raises:
        CheckpointError: if there are no layers or no encoder, or if a layer or one of the final norms is missing.
    """
    first = next((name for name in ledger.placed if name.endswith("linear1.weight")), None)
    if first is None and any(map(LAYER.match, ledger.placed)):
        raise_mismatch(["encoder.layers.0.linear1.weight"], [])
    if first is None or ledger.placed[first].dim() != 2:
        raise CheckpointError(
            "the checkpoint has no transformer layers (encoder.layers.N.… or decoder.layers.N.… with linear1.weight)"
            f", it has {listed(list(ledger.left), 'tensor')}",
            "encoder-decoder Transformers with the keys of torch.nn.Transformer or of mytx are read; others: --model",
        )
    dim_feedforward, d_model = ledger.placed[first].shape
    counts = {stack: count_layers(ledger, stack) for stack in STACKS}
    if not counts["encoder"]:
        raise CheckpointError(
            "the checkpoint has a decoder and no encoder", "only encoder-decoder models are supported"
        )
    normed = {name.split(".")[0] for name in ledger.placed if ".norm." in name}
    norms = {stack: stack in normed for stack in STACKS if counts[stack]}
    if len(set(norms.values())) > 1:
        having, lacking = sorted(norms, key=norms.__getitem__, reverse=True)
        raise CheckpointError(
            f"the {having} has a final norm and the {lacking} has none: {lacking}.norm.weight is missing",
            f"if it has another name: --key {lacking}.norm.weight=NAME --key {lacking}.norm.bias=NAME",
        )
    return Sizes(
        d_model=d_model,
        dim_feedforward=dim_feedforward,
        num_encoder_layers=counts["encoder"],
        num_decoder_layers=counts["decoder"],
        final_norm=any(norms.values()),
        bias=any(STACK_NAME.fullmatch(name) and name.endswith(".bias") for name in ledger.placed),
    )


def count_layers(ledger: Ledger, stack: str) -> int:
    """The number of layers in ``stack``.

    Raises:
        CheckpointError: if a layer is missing between others.
    """
    matches = (LAYER.fullmatch(name) for name in ledger.placed)
    numbers = sorted({int(match["index"]) for match in matches if match and match["stack"] == stack})
    if numbers != list(range(len(numbers))):
        gap = next(number for number in range(len(numbers)) if number not in numbers)
        raise CheckpointError(
            f"the {stack} has layers {', '.join(map(str, numbers))}: {stack}.layers.{gap} is missing",
            "layers are numbered from 0 without gaps",
        )
    return len(numbers)
