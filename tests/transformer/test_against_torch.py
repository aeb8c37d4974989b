"""With the same weights, MyTransformer equals torch.nn.Transformer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mytx.transformer import MyMultiheadAttention, MyTransformer

MASKS = ["none", "bool 2-D", "bool 3-D", "float 2-D", "float 3-D"]
PADDINGS = ["none", "bool", "float"]
pytestmark = [
    pytest.mark.filterwarnings("ignore:Support for mismatched .* is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
]

models = st.fixed_dictionaries(
    {
        "nhead": st.integers(1, 3),
        "num_encoder_layers": st.integers(1, 2),
        "num_decoder_layers": st.integers(1, 2),
        "dim_feedforward": st.integers(1, 9),
        "activation": st.sampled_from(["relu", "gelu", "silu"]),
        "norm_first": st.booleans(),
        "bias": st.booleans(),
        "layer_norm_eps": st.sampled_from([1e-6, 1e-5, 1e-2]),
    }
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    sizes=models,
    head_dim=st.integers(1, 4),
    batch=st.integers(1, 3),
    source=st.integers(1, 6),
    target=st.integers(1, 6),
    attn=st.tuples(*[st.sampled_from(MASKS)] * 3),
    padding=st.tuples(*[st.sampled_from(PADDINGS)] * 3),
    seed=st.integers(0, 2**31),
)
def test_output_equals_torch_at_any_size_mask_and_option(
    sizes: dict[str, Any],
    head_dim: int,
    batch: int,
    source: int,
    target: int,
    attn: tuple[str, str, str],
    padding: tuple[str, str, str],
    seed: int,
) -> None:
    torch.manual_seed(seed)
    width, heads = sizes["nhead"] * head_dim, batch * sizes["nhead"]
    theirs = torch_transformer(width, sizes)
    ours = MyTransformer(d_model=width, **sizes).double().eval()
    ours.load_state_dict(unpacked(theirs.state_dict()))
    src = torch.randn(source, batch, width, dtype=torch.float64)
    tgt = torch.randn(target, batch, width, dtype=torch.float64)
    masks = {
        "src_mask": attention_mask(attn[0], heads, source, source),
        "tgt_mask": attention_mask(attn[1], heads, target, target),
        "memory_mask": attention_mask(attn[2], heads, target, source),
        "src_key_padding_mask": padding_mask(padding[0], batch, source),
        "tgt_key_padding_mask": padding_mask(padding[1], batch, target),
        "memory_key_padding_mask": padding_mask(padding[2], batch, source),
    }
    expected, actual = theirs(src, tgt, **masks), ours(src, tgt, **masks)
    assert torch.isfinite(expected).all()
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= 1e-12 * expected.abs().max()


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mask", MASKS)
def test_attention_and_its_weights_equal_torch(
    mask: str, padding: str, need_weights: bool, shake: Any, assert_close: Any
) -> None:
    theirs = shake(nn.MultiheadAttention(12, 3))
    ours = MyMultiheadAttention(12, 3).double().eval()
    ours.load_state_dict(unpacked(theirs.state_dict()))
    query, key, value = (torch.randn(n, 2, 12, dtype=torch.float64) for n in (4, 5, 5))
    attn_mask, key_padding_mask = attention_mask(mask, 6, 4, 5), padding_mask(padding, 2, 5)
    expected = theirs(query, key, value, attn_mask=attn_mask, key_padding_mask=key_padding_mask)
    output, weights = ours(query, key, value, attn_mask, key_padding_mask, need_weights)
    assert_close(output, expected[0])
    if need_weights:
        assert_close(weights, expected[1])
    else:
        assert weights is None


def torch_transformer(width: int, sizes: dict[str, Any]) -> nn.Transformer:
    activation = {"relu": "relu", "gelu": "gelu", "silu": nn.functional.silu}[sizes["activation"]]
    model = nn.Transformer(d_model=width, **{**sizes, "activation": activation, "dropout": 0.1})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.double().eval()


def unpacked(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """torch's state dict with ``in_proj`` cut into the three projections."""
    result = {}
    for name, tensor in state.items():
        if "in_proj_" in name:
            for part, piece in zip("qkv", tensor.chunk(3), strict=True):
                result[name.replace("in_proj_", f"{part}_proj.")] = piece
        else:
            result[name] = tensor
    return result


def attention_mask(kind: str, heads: int, target: int, source: int) -> Tensor | None:
    """Asymmetric, different for every head where it can be; key 0 stays open, because torch gives NaN without one."""
    if kind == "none":
        return None
    shape = (target, source) if kind.endswith("2-D") else (heads, target, source)
    forbidden = torch.rand(shape) < 0.4
    forbidden[..., 0] = False
    return forbidden if kind.startswith("bool") else added(forbidden)


def padding_mask(kind: str, batch: int, length: int) -> Tensor | None:
    if kind == "none":
        return None
    forbidden = torch.rand(batch, length) < 0.4
    forbidden[:, 0] = False
    return forbidden if kind == "bool" else added(forbidden)


def added(forbidden: Tensor) -> Tensor:
    values = torch.randn(forbidden.shape, dtype=torch.float64)
    return values.masked_fill(forbidden, -torch.inf)
