"""A query that may attend to nothing gets zero attention: finite, and equal on every path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mytx.transformer import MyMultiheadAttention, causal_mask, generate_square_subsequent_mask

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")

LENGTH, BATCH, HEADS = 5, 3, 2
HALVES = [torch.float16, torch.bfloat16, torch.float32]


def bool_rows() -> tuple[Tensor, None]:
    mask = torch.rand(LENGTH, LENGTH) < 0.4
    mask[1] = mask[4] = True
    return mask, None


def minus_infinity_rows() -> tuple[Tensor, None]:
    mask = torch.randn(LENGTH, LENGTH)
    mask[0] = mask[3] = -torch.inf
    return mask, None


def one_head_of_one_sentence() -> tuple[Tensor, None]:
    mask = torch.zeros(BATCH * HEADS, LENGTH, LENGTH, dtype=torch.bool)
    mask[1 * HEADS + 1, 2] = True
    return mask, None


def a_whole_sentence() -> tuple[None, Tensor]:
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[1] = padding[2, 3:] = True
    return None, padding


def a_whole_sentence_by_minus_infinity() -> tuple[None, Tensor]:
    return None, torch.where(a_whole_sentence()[1], -torch.inf, 0.0)


def left_padding_and_causal() -> tuple[Tensor, Tensor]:
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[0, :2] = padding[1, :4] = True
    return causal_mask(LENGTH), padding


def left_padding_and_causal_in_float() -> tuple[Tensor, Tensor]:
    return generate_square_subsequent_mask(LENGTH), torch.where(left_padding_and_causal()[1], -torch.inf, 0.0)


def mask_and_padding_together() -> tuple[Tensor, Tensor]:
    padding = a_whole_sentence()[1].roll(1, 0)
    mask = torch.randn(LENGTH, LENGTH).masked_fill(~padding[0], -torch.inf)
    return mask, padding


CASES = [
    bool_rows,
    minus_infinity_rows,
    one_head_of_one_sentence,
    a_whole_sentence,
    a_whole_sentence_by_minus_infinity,
    left_padding_and_causal,
    left_padding_and_causal_in_float,
    mask_and_padding_together,
]


def dead_heads(mask: Tensor | None, padding: Tensor | None) -> Tensor:
    """``[N, H, T]``: True where nothing is left to attend to."""
    forbidden = torch.zeros(BATCH, HEADS, LENGTH, LENGTH, dtype=torch.bool)
    if mask is not None:
        closed = mask if mask.dtype == torch.bool else mask == -torch.inf
        forbidden |= closed if closed.dim() == 2 else closed.unflatten(0, (BATCH, HEADS))
    if padding is not None:
        closed = padding if padding.dtype == torch.bool else padding == -torch.inf
        forbidden |= closed[:, None, None, :]
    return forbidden.all(-1)


@pytest.mark.parametrize("form", ["eager", "scripted"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_a_dead_row_is_zero_and_every_other_row_is_attention_over_what_is_left(
    case: Any,
    need_weights: bool,
    training: bool,
    form: str,
    attention: MyMultiheadAttention,
    by_hand: Any,
    assert_close: Any,
) -> None:
    mask, padding = case()
    query, key, value = (torch.randn(LENGTH, BATCH, 8, dtype=torch.float64) for _ in range(3))
    expected, expected_weights = by_hand(attention, query, key, value, mask, padding)
    module = attention.train(training) if form == "eager" else torch.jit.script(attention.train(training))
    for _ in range(2):
        output, weights = module(query, key, value, mask, padding, need_weights)
        assert_close(output, expected)
        if need_weights:
            assert_close(weights, expected_weights)

    dead = dead_heads(mask, padding)
    assert dead.any()
    assert not dead.all()
    wholly = dead.all(1)  # every head
    assert torch.equal(output[wholly.T], attention.out_proj.bias.expand(int(wholly.sum()), -1))
    if need_weights:
        assert (weights[wholly] == 0).all()


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("training", [False, True])
def test_with_everything_forbidden_the_output_is_the_bias(
    training: bool, need_weights: bool, attention: MyMultiheadAttention
) -> None:
    x = torch.randn(LENGTH, BATCH, 8, dtype=torch.float64)
    attention.train(training)
    output, _ = attention(x, x, x, torch.ones(LENGTH, LENGTH, dtype=torch.bool), None, need_weights)
    assert torch.equal(output, attention.out_proj.bias.expand(LENGTH, BATCH, -1))


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("masked", [False, True])
def test_no_keys_at_all_are_nothing_to_attend_to(
    masked: bool, need_weights: bool, attention: MyMultiheadAttention
) -> None:
    x = torch.randn(LENGTH, BATCH, 8, dtype=torch.float64)
    padding = torch.zeros(BATCH, 0, dtype=torch.bool) if masked else None
    output, _ = attention(x, x[:0], x[:0], None, padding, need_weights)
    assert torch.equal(output, attention.out_proj.bias.expand(LENGTH, BATCH, -1))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("low", ["-inf", "lowest finite"])
@pytest.mark.parametrize("need_weights", [True, False])
def test_left_padding_and_causal_are_finite_in_low_precision_below_large_negative_scores(
    need_weights: bool, low: str, dtype: torch.dtype, attention: MyMultiheadAttention
) -> None:
    with torch.no_grad():  # every score is about -70: the lowest finite float16 plus that is -inf
        attention.q_proj.weight.copy_(7 * torch.eye(8))
        attention.k_proj.weight.copy_(-5 * torch.eye(8))
    attention.to(dtype)
    x = (1 + 0.1 * torch.randn(LENGTH, BATCH, 8)).to(dtype)
    value = -torch.inf if low == "-inf" else torch.finfo(dtype).min
    causal, closed = left_padding_and_causal()
    mask = torch.zeros(LENGTH, LENGTH, dtype=dtype).masked_fill(causal, value)
    padding = torch.zeros(BATCH, LENGTH, dtype=dtype).masked_fill(closed, value)
    output, weights = attention(x, x, x, mask, padding, need_weights)
    assert output.dtype == dtype
    assert torch.isfinite(output).all()
    if need_weights:
        fused = attention(x, x, x, mask, padding, need_weights=False)[0]
        assert (output - fused).abs().max() <= 16 * torch.finfo(dtype).eps * output.abs().max()
        # The last position still attends to its own sentence's tokens and to no others.
        assert torch.isfinite(weights).all()
        assert (weights[:, -1].masked_select(closed) == 0).all()
        assert ((weights[:, -1].float().sum(-1) - 1).abs() < 0.02).all()


def stack_inputs(dtype: torch.dtype) -> dict[str, Tensor]:
    """A wholly padded source, a left-padded target, and a memory mask that closes a target row."""
    memory_mask = torch.zeros(LENGTH, 4, dtype=torch.bool)
    memory_mask[2] = True
    source_padding = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 0, 1]]).bool()
    return {
        "src": torch.randn(4, BATCH, 8, dtype=dtype),
        "tgt": torch.randn(LENGTH, BATCH, 8, dtype=dtype),
        "tgt_mask": causal_mask(LENGTH),
        "memory_mask": memory_mask,
        "src_key_padding_mask": source_padding,
        "tgt_key_padding_mask": left_padding_and_causal()[1],
        "memory_key_padding_mask": source_padding.clone(),
    }


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_whole_stack_with_dead_rows_is_finite_and_so_are_its_gradients(
    dtype: torch.dtype, norm_first: bool, make_model: Any
) -> None:
    model = make_model(dtype, norm_first=norm_first, dropout=0.0).train()
    inputs = stack_inputs(dtype)
    inputs["src"].requires_grad_()
    output = model(**inputs)
    assert torch.isfinite(output).all()
    (output.float() ** 2).mean().backward()
    for name, tensor in [("src", inputs["src"]), *model.named_parameters()]:
        assert tensor.grad is not None, name
        assert torch.isfinite(tensor.grad).all(), name


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_dead_row_sends_no_gradient_to_its_inputs(need_weights: bool, attention: MyMultiheadAttention) -> None:
    query, key, value = (torch.randn(LENGTH, BATCH, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask, _ = bool_rows()
    attention(query, key, value, mask, None, need_weights)[0][1].sum().backward()  # row 1 is dead
    for x in (query, key, value):
        assert torch.equal(x.grad, torch.zeros_like(x))
