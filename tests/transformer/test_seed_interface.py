"""Names, argument order, defaults and state-dict keys are the seed's: its callers and checkpoints keep working."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mytx.transformer as public
from mytx.transformer import (
    MyMultiheadAttention,
    MyTransformer,
    MyTransformerDecoder,
    MyTransformerDecoderLayer,
    MyTransformerEncoder,
    MyTransformerEncoderLayer,
    generate_square_subsequent_mask,
    multi_head_attention_forward,
)

REQUIRED = inspect.Parameter.empty
LAYER = {"d_model": REQUIRED, "nhead": REQUIRED, "dim_feedforward": 2048, "dropout": 0.1}
DECODER_MASKS = ["tgt_mask", "memory_mask", "tgt_key_padding_mask", "memory_key_padding_mask"]

SIGNATURES: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (
        MyTransformer,
        {
            "d_model": 512,
            "nhead": 8,
            "num_encoder_layers": 6,
            "num_decoder_layers": 6,
            "dim_feedforward": 2048,
            "dropout": 0.1,
        },
    ),
    (
        MyTransformer.forward,
        {
            "self": REQUIRED,
            "src": REQUIRED,
            "tgt": REQUIRED,
            "src_mask": None,
            "tgt_mask": None,
            "memory_mask": None,
            "src_key_padding_mask": None,
            "tgt_key_padding_mask": None,
            "memory_key_padding_mask": None,
        },
    ),
    (MyTransformer.generate_square_subsequent_mask, {"self": REQUIRED, "sz": REQUIRED}),
    (generate_square_subsequent_mask, {"sz": REQUIRED}),
    (MyTransformerEncoderLayer, LAYER),
    (
        MyTransformerEncoderLayer.forward,
        {"self": REQUIRED, "src": REQUIRED, "src_mask": None, "src_key_padding_mask": None},
    ),
    (MyTransformerEncoder, {"encoder_layer": REQUIRED, "num_layers": REQUIRED, "norm": None}),
    (MyTransformerEncoder.forward, {"self": REQUIRED, "src": REQUIRED, "mask": None, "src_key_padding_mask": None}),
    (MyTransformerDecoderLayer, LAYER),
    (
        MyTransformerDecoderLayer.forward,
        {"self": REQUIRED, "tgt": REQUIRED, "memory": REQUIRED, **dict.fromkeys(DECODER_MASKS)},
    ),
    (MyTransformerDecoder, {"decoder_layer": REQUIRED, "num_layers": REQUIRED, "norm": None}),
    (
        MyTransformerDecoder.forward,
        {"self": REQUIRED, "tgt": REQUIRED, "memory": REQUIRED, **dict.fromkeys(DECODER_MASKS)},
    ),
    (MyMultiheadAttention, {"embed_dim": REQUIRED, "num_heads": REQUIRED, "dropout": 0.0, "bias": True}),
    (
        MyMultiheadAttention.forward,
        {
            "self": REQUIRED,
            "query": REQUIRED,
            "key": REQUIRED,
            "value": REQUIRED,
            "attn_mask": None,
            "key_padding_mask": None,
        },
    ),
    (
        multi_head_attention_forward,
        {
            "query": REQUIRED,
            "key": REQUIRED,
            "value": REQUIRED,
            "num_heads": REQUIRED,
            "dropout_p": REQUIRED,
            "out_proj": REQUIRED,
            "training": True,
            "key_padding_mask": None,
            "q_proj": None,
            "k_proj": None,
            "v_proj": None,
            "attn_mask": None,
        },
    ),
]


@pytest.mark.parametrize(("callee", "expected"), SIGNATURES, ids=lambda value: getattr(value, "__qualname__", ""))
def test_a_signature_begins_with_the_seeds(callee: Callable[..., Any], expected: dict[str, Any]) -> None:
    parameters = inspect.signature(callee).parameters.values()
    assert [(p.name, p.default) for p in parameters][: len(expected)] == list(expected.items())
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
    assert all(p.default is not REQUIRED for p in list(parameters)[len(expected) :])


def test_everything_public_is_there() -> None:
    assert [name for name in public.__all__ if not hasattr(public, name)] == []
    assert {callee.__qualname__ for callee, _ in SIGNATURES if "." not in callee.__qualname__} <= set(public.__all__)


@pytest.mark.parametrize("module", ["attention", "attention_nobias", "encoder_layer", "decoder_layer", "transformer"])
def test_state_dict_keys_shapes_and_order_are_the_seeds(module: str, seed: Any) -> None:
    ours = seed.module(f"{module}/plain", torch.float32).state_dict()
    theirs = seed.tensors(f"{module}/weights/")
    assert [(name, p.shape) for name, p in ours.items()] == [(name, p.shape) for name, p in theirs.items()]


def test_the_seeds_attributes_are_there() -> None:
    attention = MyMultiheadAttention(12, 3, dropout=0.2)
    assert (attention.embed_dim, attention.num_heads, attention.head_dim) == (12, 3, 4)
    assert (attention.kdim, attention.vdim, attention.dropout) == (4, 4, 0.2)
    model = MyTransformer(12, 3, 1, 2, 5)
    assert (model.d_model, model.nhead, model.encoder.num_layers, model.decoder.num_layers) == (12, 3, 1, 2)


def test_the_causal_mask_is_the_seeds(seed: Any, make_model: Any) -> None:
    expected = torch.from_numpy(seed.arrays["square_subsequent_mask_5"])
    for mask in (generate_square_subsequent_mask(5), make_model().generate_square_subsequent_mask(5)):
        assert mask.dtype == expected.dtype == torch.float32
        assert torch.equal(mask, expected)


@pytest.mark.parametrize("masked", [False, True])
def test_the_function_is_the_module(masked: bool, attention: MyMultiheadAttention) -> None:
    query, key, value = (torch.randn(n, 3, 8, dtype=torch.float64) for n in (4, 5, 5))
    masks = {"attn_mask": torch.rand(4, 5) < 0.4, "key_padding_mask": torch.rand(3, 5) < 0.4} if masked else {}
    projections = {f"{part}_proj": getattr(attention, f"{part}_proj") for part in "qkv"}
    function = multi_head_attention_forward(
        query, key, value, 2, 0.5, attention.out_proj, training=False, **projections, **masks
    )
    for ours, expected in zip(function, attention(query, key, value, **masks), strict=True):
        assert torch.equal(ours, expected)


def test_the_function_drops_out_unless_told_that_it_is_not_training(attention: MyMultiheadAttention) -> None:
    x = torch.randn(4, 3, 8, dtype=torch.float64)
    projections = {f"{part}_proj": getattr(attention, f"{part}_proj") for part in "qkv"}
    trained, weights = multi_head_attention_forward(x, x, x, 2, 0.5, attention.out_proj, **projections)
    assert (weights == 0).any()
    assert not torch.allclose(trained, attention(x, x, x)[0])
