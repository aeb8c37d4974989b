"""Sizes that do not fit raise a ValueError that names both values."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from mytx.transformer import MyMultiheadAttention, MyTransformer, TransformerConfig, multi_head_attention_forward

T, S, N, H, E = 4, 5, 3, 2, 8


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


ATTENTION = [
    ({"attn_mask": zeros(T, S + 1)}, f"[{T}, {S + 1}]", f"[{T}, {S}]"),
    ({"attn_mask": zeros(S, T)}, f"[{S}, {T}]", f"[{T}, {S}]"),
    ({"attn_mask": zeros(1, S)}, f"[1, {S}]", f"[{T}, {S}]"),
    ({"attn_mask": zeros(N * H, T + 1, S)}, f"[{T + 1}, {S}]", f"[{T}, {S}]"),
    ({"attn_mask": zeros(N, T, S)}, f"{N} matrices", f"batch * heads = {N * H}"),
    ({"attn_mask": zeros(1, T, S)}, "1 matrices", f"batch * heads = {N * H}"),
    ({"attn_mask": zeros(N, H, T, S)}, "2 or 3 dimensions", "got 4"),
    ({"attn_mask": zeros(S)}, "2 or 3 dimensions", "got 1"),
    ({"key_padding_mask": zeros(S, N)}, f"[{S}, {N}]", f"[{N}, {S}]"),
    ({"key_padding_mask": zeros(N, T)}, f"[{N}, {T}]", f"[{N}, {S}]"),
    ({"key_padding_mask": zeros(1, S)}, f"[1, {S}]", f"[{N}, {S}]"),
    ({"key_padding_mask": zeros(S)}, "2 dimensions", "got 1"),
    ({"key": zeros(S + 1, N, E)}, f"key length ({S + 1})", f"value length ({S})"),
    ({"value": zeros(S, N + 1, E)}, f"key {N}", f"value {N + 1}"),
    ({"query": zeros(T, 1, E)}, "query 1", f"key {N}"),
    ({"query": zeros(T, E)}, "3 dimensions", "got 2, 3, 3"),
    ({"query": zeros(T, N, E + 1)}, f"{E} wide", f"got {E + 1}"),
    ({"value": zeros(S, N, E - 1)}, f"{E} wide", f"got {E - 1}"),
]


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(("wrong", "found", "expected"), ATTENTION)
def test_attention_names_what_it_got_and_what_it_expected(
    wrong: dict[str, torch.Tensor], found: str, expected: str, need_weights: bool
) -> None:
    module = MyMultiheadAttention(E, H)
    inputs = {"query": zeros(T, N, E), "key": zeros(S, N, E), "value": zeros(S, N, E)}
    assert module(**inputs)[0].shape == (T, N, E)
    with pytest.raises(ValueError, match=re.escape(found)) as error:
        module(**{**inputs, **wrong}, need_weights=need_weights)
    assert expected in str(error.value)


TRANSFORMER = [
    ({"src": zeros(S, N, E + 1)}, f"got {E + 1} and {E}"),
    ({"tgt": zeros(T, N, E - 1)}, f"got {E} and {E - 1}"),
    ({"tgt": zeros(T, N + 1, E)}, f"query {N + 1}, key {N}"),
    ({"src_mask": zeros(T, T)}, f"[{T}, {T}], expected [{S}, {S}]"),
    ({"tgt_mask": zeros(S, S)}, f"[{S}, {S}], expected [{T}, {T}]"),
    ({"memory_mask": zeros(S, T)}, f"[{S}, {T}], expected [{T}, {S}]"),
    ({"src_key_padding_mask": zeros(S, N)}, f"[{S}, {N}], expected [{N}, {S}]"),
    ({"tgt_key_padding_mask": zeros(N, S)}, f"[{N}, {S}], expected [{N}, {T}]"),
    ({"memory_key_padding_mask": zeros(N, T)}, f"[{N}, {T}], expected [{N}, {S}]"),
]


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(("wrong", "message"), TRANSFORMER)
def test_a_transformer_names_what_it_got_and_what_it_expected(
    wrong: dict[str, torch.Tensor], message: str, norm_first: bool, make_model: Any
) -> None:
    model = make_model(torch.float32, norm_first=norm_first)
    inputs = {"src": zeros(S, N, E), "tgt": zeros(T, N, E)}
    assert model(**inputs).shape == (T, N, E)
    with pytest.raises(ValueError, match=re.escape(message)):
        model(**{**inputs, **wrong})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 10, "nhead": 3}, "d_model (10) must be a positive multiple of the number of heads (3)"),
        ({"d_model": 4, "nhead": 8}, "d_model (4) must be a positive multiple of the number of heads (8)"),
        ({"nhead": 0}, "the number of heads (0)"),
        ({"nhead": -2}, "the number of heads (-2)"),
        ({"d_model": 0}, "d_model (0)"),
        ({"d_model": -8}, "d_model (-8)"),
        ({"num_encoder_layers": -1}, "num_encoder_layers must not be negative, got -1"),
        ({"num_decoder_layers": -2}, "num_decoder_layers must not be negative, got -2"),
        ({"dim_feedforward": 0}, "dim_feedforward must be positive, got 0"),
        ({"dropout": -0.1}, "dropout must be in [0, 1), got -0.1"),
        ({"dropout": 1.0}, "dropout must be in [0, 1), got 1.0"),
        ({"dropout": float("nan")}, "dropout must be in [0, 1), got nan"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps must be in (0, 1), got 0.0"),
        ({"layer_norm_eps": 1.5}, "layer_norm_eps must be in (0, 1), got 1.5"),
        ({"activation": "tanh"}, "activation must be one of relu, gelu, silu, got 'tanh'"),
    ],
)
def test_a_configuration_names_the_field_and_its_value(changes: dict[str, Any], message: str) -> None:
    small = {"d_model": 8, "nhead": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "dim_feedforward": 4}
    TransformerConfig(**small)
    for build in (TransformerConfig, MyTransformer):
        with pytest.raises(ValueError, match=re.escape(message)):
            build(**{**small, **changes})


def test_attention_names_a_width_that_the_heads_do_not_divide() -> None:
    with pytest.raises(ValueError, match=r"\(10\).*\(3\)"):
        MyMultiheadAttention(10, 3)


@pytest.mark.parametrize("missing", ["q_proj", "k_proj", "v_proj"])
def test_the_function_wants_all_three_projections(missing: str) -> None:
    linear = torch.nn.Linear(E, E)
    given: dict[str, Any] = {name: linear for name in ("q_proj", "k_proj", "v_proj") if name != missing}
    x = zeros(T, N, E)
    with pytest.raises(ValueError, match="q_proj, k_proj and v_proj are all needed"):
        multi_head_attention_forward(x, x, x, H, 0.0, linear, **given)
