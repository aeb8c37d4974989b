"""The meaning of masks: polarity, kinds, axes, and which positions see which."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mytx.transformer import MyMultiheadAttention, causal_mask, generate_square_subsequent_mask

T, S, N, H = 4, 5, 3, 2


def qkv(source: int = S) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (torch.randn(n, N, 8, dtype=torch.float64) for n in (T, source, source))
    return query, key, value


def added(forbidden: Tensor) -> Tensor:
    return torch.where(forbidden, -torch.inf, 0.0)


def open_somewhere(*shape: int) -> Tensor:
    """A random bool mask that leaves key 0 to everybody."""
    forbidden = torch.rand(shape) < 0.5
    forbidden[..., 0] = False
    return forbidden


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("shape", [(T, S), (N * H, T, S)], ids=["2-D", "3-D"])
@pytest.mark.parametrize("mask_is", ["bool", "float", "none"])
@pytest.mark.parametrize("padding_is", ["bool", "float", "none"])
def test_attention_is_that_done_by_hand(
    padding_is: str,
    mask_is: str,
    shape: tuple[int, ...],
    need_weights: bool,
    attention: MyMultiheadAttention,
    by_hand: Any,
    assert_close: Any,
) -> None:
    masks = {"bool": open_somewhere(*shape), "float": 2 * torch.randn(shape), "none": None}
    paddings = {"bool": open_somewhere(N, S), "float": 2 * torch.randn(N, S), "none": None}
    inputs = (*qkv(), masks[mask_is], paddings[padding_is])
    expected, expected_weights = by_hand(attention, *inputs)
    output, weights = attention(*inputs, need_weights=need_weights)
    assert_close(output, expected)
    if need_weights:
        assert_close(weights, expected_weights)


@pytest.mark.parametrize("need_weights", [True, False])
def test_true_means_may_not_attend(need_weights: bool, attention: MyMultiheadAttention) -> None:
    query, key, value = qkv()
    forbidden, padding = open_somewhere(T, S), open_somewhere(N, S)
    as_bool = attention(query, key, value, forbidden, padding, need_weights)[0]
    as_float = attention(query, key, value, added(forbidden), added(padding), need_weights)[0]
    assert torch.equal(as_bool, as_float)
    weights = attention(query, key, value, forbidden, padding)[1]
    closed = forbidden | padding[:, None, :]
    assert (weights[closed] == 0).all()
    assert (weights[~closed] > 0).all()


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("which", ["attn_mask", "key_padding_mask"])
def test_a_small_float_mask_is_added_and_not_taken_for_a_bool(
    which: str, need_weights: bool, attention: MyMultiheadAttention
) -> None:
    query, key, value = qkv()
    small = 1e-3 * torch.randn((T, S) if which == "attn_mask" else (N, S))
    without = attention(query, key, value, need_weights=need_weights)[0]
    moved = (attention(query, key, value, **{which: small}, need_weights=need_weights)[0] - without).abs().max()
    assert 1e-7 < moved < 1e-2


def test_a_square_mask_is_not_transposed(attention: MyMultiheadAttention) -> None:
    x, _, _ = qkv()
    weights = attention(x, x, x, causal_mask(T))[1]
    assert torch.equal(weights == 0, causal_mask(T).expand(N, -1, -1))


def test_a_3d_mask_holds_the_heads_of_a_sentence_together(attention: MyMultiheadAttention) -> None:
    query, key, value = qkv()
    forbidden = torch.zeros(N * H, T, S, dtype=torch.bool)
    forbidden[H : 2 * H, :, 1:] = True  # both heads of sentence 1 see key 0 alone
    weights = attention(query, key, value, forbidden)[1]
    assert (weights[1, :, 1:] == 0).all()
    assert (weights[[0, 2]] > 0).all()


@pytest.mark.parametrize("mask", [torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("which", ["attn_mask", "key_padding_mask"])
def test_an_integer_mask_is_refused(which: str, mask: torch.dtype, attention: MyMultiheadAttention) -> None:
    with pytest.raises(ValueError, match=rf"must be bool .*float .*got {mask}"):
        attention(*qkv(), **{which: torch.ones((T, S) if which == "attn_mask" else (N, S), dtype=mask)})


def test_a_mask_may_have_another_float_dtype_than_the_model(attention: MyMultiheadAttention, assert_close: Any) -> None:
    query, key, value = qkv()
    mask = torch.randint(-3, 3, (T, S)).double()
    output = attention(query, key, value, mask)[0]
    for dtype in (torch.float16, torch.bfloat16, torch.float32):  # the values are exact in all of them
        assert_close(attention(query, key, value, mask.to(dtype))[0], output)


@pytest.mark.parametrize("length", [0, 1, 2, 5, 31])
def test_both_causal_masks_forbid_what_lies_ahead(length: int) -> None:
    forbidden = causal_mask(length)
    assert forbidden.dtype == torch.bool
    assert forbidden.tolist() == [[j > i for j in range(length)] for i in range(length)]
    assert torch.equal(generate_square_subsequent_mask(length), added(forbidden))


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_future_never_leaks(norm_first: bool, make_model: Any) -> None:
    model = make_model(norm_first=norm_first)
    src, tgt = torch.randn(S, N, 8, dtype=torch.float64), torch.randn(T, N, 8, dtype=torch.float64)
    before = model(src, tgt, tgt_mask=causal_mask(T))
    for position in range(T):
        other = tgt.clone()
        other[position] = torch.randn(N, 8)
        after = model(src, other, tgt_mask=causal_mask(T))
        assert torch.equal(after[:position], before[:position])
        assert not torch.isclose(after[position:], before[position:]).all(-1).any()


def test_what_stands_behind_padding_changes_nothing_else(make_model: Any, assert_close: Any) -> None:
    model = make_model()
    src, tgt = torch.randn(S, N, 8, dtype=torch.float64), torch.randn(T, N, 8, dtype=torch.float64)
    source, target = open_somewhere(N, S), open_somewhere(N, T)
    masks = {"src_key_padding_mask": source, "tgt_key_padding_mask": target, "memory_key_padding_mask": source}
    before = model(src, tgt, **masks)
    src[source.T] = 100.0
    tgt[target.T] = -100.0
    after = model(src, tgt, **masks)
    assert source.any()
    assert target.any()
    assert_close(after[~target.T], before[~target.T])
    assert not torch.isclose(after[target.T], before[target.T]).any(1).all()


def test_the_output_keeps_its_length_when_every_sentence_ends_in_padding(make_model: Any) -> None:
    model = make_model()
    src = torch.randn(S, N, 8, dtype=torch.float64)
    padding = torch.zeros(N, S, dtype=torch.bool)
    padding[:, 3:] = True
    for training in (False, True):
        model.train(training)
        with torch.no_grad():
            assert model.encoder(src, src_key_padding_mask=padding).shape == (S, N, 8)
    padding[1] = True  # and a sentence of nothing else
    with torch.inference_mode():
        memory = model.eval().encoder(src, src_key_padding_mask=padding)
    assert memory.shape == (S, N, 8)
    assert torch.isfinite(memory).all()
