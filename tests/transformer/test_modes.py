"""Training, evaluation and gradients: equal numbers, and inputs do not change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mytx.transformer import (
    MyMultiheadAttention,
    MyTransformerDecoderLayer,
    MyTransformerEncoderLayer,
    causal_mask,
    generate_square_subsequent_mask,
)

S, T, N, H = 5, 4, 3, 2
DOUBLE = torch.float64


def inputs_of(kind: str) -> dict[str, Tensor]:
    """Every input there is, with masks of one kind; some rows may attend nowhere."""
    inputs = {"src": torch.randn(S, N, 8, dtype=DOUBLE), "tgt": torch.randn(T, N, 8, dtype=DOUBLE)}
    lengths = {"src_mask": (S, S), "tgt_mask": (T, T), "memory_mask": (T, S)}
    for name, (target, source) in lengths.items():
        shape = (N * H, target, source) if kind.endswith("3-D") else (target, source)
        inputs[name] = torch.rand(shape) < 0.6
    for name, length in {"src": S, "tgt": T, "memory": S}.items():
        inputs[f"{name}_key_padding_mask"] = torch.rand(N, length) < 0.4
    if kind.startswith("float"):
        for name in inputs:
            if "mask" in name:
                inputs[name] = torch.randn(inputs[name].shape, dtype=DOUBLE).masked_fill(inputs[name], -torch.inf)
    return inputs


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", ["bool 2-D", "bool 3-D", "float 2-D", "float 3-D"])
def test_inputs_are_left_as_they_were(kind: str, training: bool, make_model: Any) -> None:
    model = make_model().train(training)
    inputs = inputs_of(kind)
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    model(**inputs).sum().backward()
    for name, tensor in inputs.items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_leaves_its_inputs_as_they_were(need_weights: bool, attention: MyMultiheadAttention) -> None:
    inputs = [torch.randn(n, N, 8, dtype=DOUBLE) for n in (T, S, S)]
    inputs += [generate_square_subsequent_mask(S)[:T], torch.randn(N, S)]
    before = [tensor.clone() for tensor in inputs]
    attention(*inputs, need_weights=need_weights)
    assert all(torch.equal(now, then) for now, then in zip(inputs, before, strict=True))


@pytest.mark.parametrize("norm_first", [False, True])
def test_all_modes_agree_and_two_runs_are_bit_equal(norm_first: bool, make_model: Any, assert_close: Any) -> None:
    model = make_model(dropout=0.0, norm_first=norm_first)
    inputs = inputs_of("bool 2-D")
    first = model(**inputs)
    assert torch.equal(model(**inputs), first)
    with torch.no_grad():
        assert_close(model(**inputs), first)
    with torch.inference_mode():
        assert_close(model(**inputs), first)
    model.train()
    assert_close(model(**inputs), first)
    with torch.no_grad():
        assert_close(model(**inputs), first)


def test_two_runs_in_eval_are_bit_equal_whatever_the_dropout(make_model: Any) -> None:
    model = make_model(dropout=0.9)
    inputs = inputs_of("float 2-D")
    assert torch.equal(model(**inputs), model(**inputs))


def test_one_step_of_training_has_finite_gradients_and_lowers_the_loss(make_model: Any) -> None:
    model = make_model(torch.float32, dropout=0.0).train()
    src, tgt, wanted = torch.randn(S, N, 8), torch.randn(T, N, 8), torch.randn(T, N, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss() -> Tensor:
        return nn.functional.mse_loss(model(src, tgt, tgt_mask=causal_mask(T)), wanted)

    before = loss()
    before.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        # Softmax ignores a constant, which is all that the bias of the keys adds.
        assert (parameter.grad.abs().max() > 1e-6) == (not name.endswith("k_proj.bias")), name
    optimizer.step()
    assert loss() < before


def test_both_paths_of_attention_have_the_same_gradients(attention: MyMultiheadAttention, assert_close: Any) -> None:
    inputs = [torch.randn(n, N, 8, dtype=DOUBLE) for n in (T, S, S)]
    mask, padding = torch.rand(T, S) < 0.4, torch.rand(N, S) < 0.4

    def gradients(need_weights: bool) -> dict[str, Tensor]:
        attention.zero_grad()
        output = attention(*inputs, mask, padding, need_weights)[0]
        (output * torch.linspace(-1, 1, 8)).sum().backward()
        return {name: p.grad.clone() for name, p in attention.named_parameters() if "k_proj.bias" not in name}

    explicit, fused = gradients(True), gradients(False)
    for name in explicit:
        assert_close(fused[name], explicit[name], 1e-11)


@pytest.mark.parametrize(
    ("layer", "lengths", "dropouts"), [(MyTransformerEncoderLayer, [S], 4), (MyTransformerDecoderLayer, [T, S], 6)]
)
def test_every_dropout_of_a_layer_acts_in_training_and_not_in_eval(
    layer: Any, lengths: list[int], dropouts: int, shake: Any
) -> None:
    module = shake(layer(8, 2, 12, dropout=0.0))
    places = [m for m in module.modules() if isinstance(m, nn.Dropout | MyMultiheadAttention)]
    assert len(places) == dropouts
    inputs = [torch.randn(length, N, 8, dtype=DOUBLE) for length in lengths]
    still = module(*inputs)
    for place in places:
        name = "p" if isinstance(place, nn.Dropout) else "dropout"
        setattr(place, name, 0.5)
        assert torch.equal(module.eval()(*inputs), still)
        assert not torch.allclose(module.train()(*inputs), still)
        setattr(place, name, 0.0)


def test_attention_drops_weights_and_scales_the_rest() -> None:
    module = MyMultiheadAttention(8, 1, dropout=0.75).double()
    query, key, value = (torch.randn(n, N, 8, dtype=DOUBLE) for n in (40, 30, 30))
    whole = module.eval()(query, key, value)[1]
    dropped = module.train()(query, key, value)[1]
    kept = dropped != 0
    assert torch.allclose(dropped[kept], 4 * whole[kept], rtol=1e-12, atol=0)
    assert 0.2 < kept.double().mean() < 0.3
