"""The encoder: a stack of self-attention and feed-forward blocks."""

import copy
from typing import Optional

from torch import Tensor, nn

from .attention import MyMultiheadAttention
from .config import build_activation


def clones(module: nn.Module, count: int) -> nn.ModuleList:
    """``count`` independent copies of ``module``."""
    return nn.ModuleList([copy.deepcopy(module) for _ in range(count)])


class MyTransformerEncoderLayer(nn.Module):
    """One encoder block: self-attention, then a feed-forward network, each with a residual and a norm.

    Args:
        d_model: E.
        nhead: H; divides E.
        dim_feedforward: width of the hidden layer.
        dropout: probability, for the attention weights, the hidden layer and both residual branches.
        activation: ``relu``, ``gelu`` or ``silu``.
        norm_first: apply the norm before each block (pre-LN) instead of after the residual (post-LN).
        layer_norm_eps: epsilon that the norms add to the variance.
        bias: whether linear layers and norms have a bias.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        norm_first: bool = False,
        layer_norm_eps: float = 1e-5,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.norm_first = norm_first
        # In the order of the original code, so that the same random seed gives the same initial weights.
        self.self_attn = MyMultiheadAttention(d_model, nhead, dropout=dropout, bias=bias)
        self.dropout1 = nn.Dropout(dropout)
        self.norm1 = nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias)
        self.linear1 = nn.Linear(d_model, dim_feedforward, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(dim_feedforward, d_model, bias=bias)
        self.activation = build_activation(activation)
        self.dropout2 = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias)

    def forward(
        self, src: Tensor, src_mask: Optional[Tensor] = None, src_key_padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        """``src [S, N, E]``, ``src_mask [S, S]`` or ``[N*H, S, S]``, padding mask ``[N, S]`` -> ``[S, N, E]``."""
        if self.norm_first:
            src = src + self._attend(self.norm1(src), src_mask, src_key_padding_mask)
            return src + self._feed_forward(self.norm2(src))
        src = self.norm1(src + self._attend(src, src_mask, src_key_padding_mask))
        return self.norm2(src + self._feed_forward(src))

    def _attend(self, x: Tensor, mask: Optional[Tensor], padding: Optional[Tensor]) -> Tensor:
        return self.dropout1(self.self_attn(x, x, x, mask, padding, need_weights=False)[0])

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class MyTransformerEncoder(nn.Module):
    """``num_layers`` copies of ``encoder_layer``, followed by ``norm`` if it is given."""

    def __init__(self, encoder_layer: nn.Module, num_layers: int, norm: Optional[nn.Module] = None) -> None:
        super().__init__()
        self.layers = clones(encoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self, src: Tensor, mask: Optional[Tensor] = None, src_key_padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        """``src [S, N, E]`` -> memory ``[S, N, E]``. The masks are those of the layer."""
        output = src
        for layer in self.layers:
            output = layer(output, src_mask=mask, src_key_padding_mask=src_key_padding_mask)
        if self.norm is not None:
            output = self.norm(output)
        return output
