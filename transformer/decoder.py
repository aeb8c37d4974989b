"""The decoder: self-attention over the target, cross-attention over the memory, feed-forward."""

from typing import Optional

from torch import Tensor, nn

from .attention import MyMultiheadAttention
from .config import build_activation
from .encoder import clones


class MyTransformerDecoderLayer(nn.Module):
    """One decoder block: self-attention, cross-attention, feed-forward, each with a residual and a norm.

    The arguments are those of :class:`~mytx.transformer.MyTransformerEncoderLayer`.
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
        self.multihead_attn = MyMultiheadAttention(d_model, nhead, dropout=dropout, bias=bias)
        self.linear1 = nn.Linear(d_model, dim_feedforward, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(dim_feedforward, d_model, bias=bias)
        self.norm1 = nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias)
        self.norm2 = nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias)
        self.norm3 = nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)
        self.dropout3 = nn.Dropout(dropout)
        self.activation = build_activation(activation)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Optional[Tensor] = None,
        memory_mask: Optional[Tensor] = None,
        tgt_key_padding_mask: Optional[Tensor] = None,
        memory_key_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """``tgt [T, N, E]``, ``memory [S, N, E]`` -> ``[T, N, E]``.

        ``tgt_mask`` is ``[T, T]`` or ``[N*H, T, T]``, ``memory_mask`` is ``[T, S]`` or ``[N*H, T, S]``,
        the padding masks are ``[N, T]`` and ``[N, S]``.
        """
        if self.norm_first:
            tgt = tgt + self._attend(self.norm1(tgt), tgt_mask, tgt_key_padding_mask)
            tgt = tgt + self._cross_attend(self.norm2(tgt), memory, memory_mask, memory_key_padding_mask)
            return tgt + self._feed_forward(self.norm3(tgt))
        tgt = self.norm1(tgt + self._attend(tgt, tgt_mask, tgt_key_padding_mask))
        tgt = self.norm2(tgt + self._cross_attend(tgt, memory, memory_mask, memory_key_padding_mask))
        return self.norm3(tgt + self._feed_forward(tgt))

    def _attend(self, x: Tensor, mask: Optional[Tensor], padding: Optional[Tensor]) -> Tensor:
        return self.dropout1(self.self_attn(x, x, x, mask, padding, need_weights=False)[0])

    def _cross_attend(self, x: Tensor, memory: Tensor, mask: Optional[Tensor], padding: Optional[Tensor]) -> Tensor:
        return self.dropout2(self.multihead_attn(x, memory, memory, mask, padding, need_weights=False)[0])

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.dropout3(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class MyTransformerDecoder(nn.Module):
    """``num_layers`` copies of ``decoder_layer``, followed by ``norm`` if it is given."""

    def __init__(self, decoder_layer: nn.Module, num_layers: int, norm: Optional[nn.Module] = None) -> None:
        super().__init__()
        self.layers = clones(decoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Optional[Tensor] = None,
        memory_mask: Optional[Tensor] = None,
        tgt_key_padding_mask: Optional[Tensor] = None,
        memory_key_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """``tgt [T, N, E]``, ``memory [S, N, E]`` -> ``[T, N, E]``. The masks are those of the layer."""
        output = tgt
        for layer in self.layers:
            output = layer(
                output,
                memory,
                tgt_mask=tgt_mask,
                memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
            )
        if self.norm is not None:
            output = self.norm(output)
        return output
