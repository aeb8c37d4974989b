"""A user's own layers and attention, derived from ours, can be scripted and stacked."""

from typing import Any, Optional, Tuple  # noqa: UP035 - what TorchScript reads

import pytest
import torch
from torch import Tensor, nn

from mytx.transformer import (
    MyMultiheadAttention,
    MyTransformerDecoder,
    MyTransformerDecoderLayer,
    MyTransformerEncoder,
    MyTransformerEncoderLayer,
    causal_mask,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")
Mask = Optional[Tensor]  # noqa: UP045


class PlainEncoderLayer(MyTransformerEncoderLayer):
    """Nothing overridden."""


class PlainDecoderLayer(MyTransformerDecoderLayer):
    """Nothing overridden."""


class HalvedEncoderLayer(MyTransformerEncoderLayer):
    """Its own forward around our blocks."""

    def forward(self, src: Tensor, src_mask: Mask = None, src_key_padding_mask: Mask = None) -> Tensor:
        src = self.norm1(src + 0.5 * self._attend(src, src_mask, src_key_padding_mask))
        return self.norm2(src + 0.5 * self._feed_forward(src))


class ScaledEncoderLayer(MyTransformerEncoderLayer):
    """Its own block, with a parameter of its own, in our forward."""

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048) -> None:
        super().__init__(d_model, nhead, dim_feedforward)
        self.scale = nn.Parameter(torch.full((d_model,), 0.3))

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.scale * self.linear2(self.activation(self.linear1(x)))


class SwappedDecoderLayer(MyTransformerDecoderLayer):
    """Cross-attention first, straight from our submodules."""

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Mask = None,
        memory_mask: Mask = None,
        tgt_key_padding_mask: Mask = None,
        memory_key_padding_mask: Mask = None,
    ) -> Tensor:
        across, _ = self.multihead_attn(tgt, memory, memory, memory_mask, memory_key_padding_mask)
        tgt = self.norm1(tgt + self.dropout2(across))
        within, weights = self.self_attn(tgt, tgt, tgt, attn_mask=tgt_mask, key_padding_mask=tgt_key_padding_mask)
        tgt = self.norm2(tgt + self.dropout1(within))
        if weights is not None:
            tgt = tgt * weights.mean(dim=2).transpose(0, 1).unsqueeze(2)
        return self.norm3(tgt + self._feed_forward(tgt))


class PlainAttention(MyMultiheadAttention):
    """Nothing overridden."""


class AveragingAttention(MyMultiheadAttention):
    """No scores at all: the mean of the values, through our projections."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Mask = None,
        key_padding_mask: Mask = None,
        need_weights: bool = True,
    ) -> Tuple[Tensor, Mask]:  # noqa: UP006
        mean = self.v_proj(value).mean(dim=0, keepdim=True)
        return self.out_proj(mean.expand(query.size(0), -1, -1)), None


def check(module: Any, inputs: list[Tensor], masks: dict[str, Tensor], assert_close: Any) -> Tensor:
    scripted = torch.jit.script(module)
    for given in (masks, {}, masks):
        with torch.no_grad():
            expected = module(*inputs, **given)
            assert_close(scripted(*inputs, **given), expected)
    return expected


@pytest.mark.parametrize("layer", [PlainEncoderLayer, HalvedEncoderLayer, ScaledEncoderLayer])
def test_an_encoder_of_derived_layers_scripts(layer: Any, shake: Any, assert_close: Any) -> None:
    encoder = shake(MyTransformerEncoder(layer(8, 2, 12), 2, nn.LayerNorm(8)))
    src = torch.randn(5, 3, 8, dtype=torch.float64)
    masks = {"mask": causal_mask(5), "src_key_padding_mask": torch.rand(3, 5) < 0.4}
    derived = check(encoder, [src], masks, assert_close)

    ours = MyTransformerEncoder(MyTransformerEncoderLayer(8, 2, 12), 2, nn.LayerNorm(8)).double().eval()
    ours.load_state_dict(encoder.state_dict(), strict=False)
    assert torch.allclose(derived, ours(src, **masks)) == (layer is PlainEncoderLayer)


@pytest.mark.parametrize("layer", [PlainDecoderLayer, SwappedDecoderLayer])
def test_a_decoder_of_derived_layers_scripts(layer: Any, shake: Any, assert_close: Any) -> None:
    decoder = shake(MyTransformerDecoder(layer(8, 2, 12), 2, nn.LayerNorm(8)))
    tgt, memory = (torch.randn(n, 3, 8, dtype=torch.float64) for n in (4, 5))
    masks = {"tgt_mask": causal_mask(4), "memory_key_padding_mask": torch.rand(3, 5) < 0.4}
    derived = check(decoder, [tgt, memory], masks, assert_close)

    ours = MyTransformerDecoder(MyTransformerDecoderLayer(8, 2, 12), 2, nn.LayerNorm(8)).double().eval()
    ours.load_state_dict(decoder.state_dict())
    assert torch.allclose(derived, ours(tgt, memory, **masks)) == (layer is PlainDecoderLayer)


@pytest.mark.parametrize("attention", [PlainAttention, AveragingAttention])
def test_derived_attention_scripts_inside_our_layer(attention: Any, shake: Any, assert_close: Any) -> None:
    layer = MyTransformerEncoderLayer(8, 2, 12)
    layer.self_attn = attention(8, 2)
    shake(layer)
    src = torch.randn(5, 3, 8, dtype=torch.float64)
    masks = {"src_mask": causal_mask(5)}
    derived = check(layer, [src], masks, assert_close)

    ours = MyTransformerEncoderLayer(8, 2, 12).double().eval()
    ours.load_state_dict(layer.state_dict())
    assert torch.allclose(derived, ours(src, **masks)) == (attention is PlainAttention)
