"""Multi-head attention with separate query, key and value projections.

Vaswani et al., "Attention Is All You Need", section 3.2.2: https://arxiv.org/abs/1706.03762
"""

from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import check_heads
from .masks import merge_masks, open_mask


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """``[L, N, E]`` -> ``[N, H, L, D]``."""
    return x.view(x.size(0), x.size(1), num_heads, x.size(2) // num_heads).permute(1, 2, 0, 3)


def merge_heads(x: Tensor) -> Tensor:
    """``[N, H, L, D]`` -> ``[L, N, E]``."""
    return x.permute(2, 0, 1, 3).reshape(x.size(2), x.size(0), x.size(1) * x.size(3))


def check_shapes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_heads: int,
    attn_mask: Optional[Tensor],
    key_padding_mask: Optional[Tensor],
) -> None:
    """Raise ``ValueError`` with both values if a size does not fit. The tensors are those of :func:`attend`."""
    if query.dim() != 3 or key.dim() != 3 or value.dim() != 3:
        raise ValueError(f"query, key and value must have 3 dimensions, got {query.dim()}, {key.dim()}, {value.dim()}")
    if key.size(0) != value.size(0):
        raise ValueError(f"key length ({key.size(0)}) and value length ({value.size(0)}) differ")
    if query.size(1) != key.size(1) or key.size(1) != value.size(1):
        raise ValueError(f"batch sizes differ: query {query.size(1)}, key {key.size(1)}, value {value.size(1)}")
    if attn_mask is not None:
        if attn_mask.dim() != 2 and attn_mask.dim() != 3:
            raise ValueError(f"attn_mask must have 2 or 3 dimensions, got {attn_mask.dim()}")
        target, source = attn_mask.size(-2), attn_mask.size(-1)
        if target != query.size(0) or source != key.size(0):
            raise ValueError(f"attn_mask is [{target}, {source}], expected [{query.size(0)}, {key.size(0)}]")
        if attn_mask.dim() == 3:
            rows = query.size(1) * num_heads
            if attn_mask.size(0) != rows:
                raise ValueError(f"attn_mask has {attn_mask.size(0)} matrices, expected batch * heads = {rows}")
    if key_padding_mask is not None:
        if key_padding_mask.dim() != 2:
            raise ValueError(f"key_padding_mask must have 2 dimensions, got {key_padding_mask.dim()}")
        batch, source = key_padding_mask.size(0), key_padding_mask.size(1)
        if batch != key.size(1) or source != key.size(0):
            raise ValueError(f"key_padding_mask is [{batch}, {source}], expected [{key.size(1)}, {key.size(0)}]")


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_heads: int,
    dropout_p: float,
    attn_mask: Optional[Tensor],
    key_padding_mask: Optional[Tensor],
    need_weights: bool,
) -> Tuple[Tensor, Optional[Tensor]]:
    """Attention over projected tensors. All attention in this package is computed here.

    Args:
        query: ``[T, N, E]``, projected.
        key: ``[S, N, E]``, projected.
        value: ``[S, N, E]``, projected.
        num_heads: H.
        dropout_p: probability of dropping an attention weight; 0 outside training.
        attn_mask: ``[T, S]`` or ``[N*H, T, S]``, bool (True = may not attend) or float (added).
        key_padding_mask: ``[N, S]``, bool (True = padding) or float (added).
        need_weights: True computes an explicit softmax and returns the weights too; False uses the fused kernel.

    Returns:
        The output ``[T, N, E]``, before the output projection, and the weights averaged over the heads ``[N, T, S]`` or
        None. Both are 0 in a row that may attend nowhere.

    Raises:
        ValueError: if a size does not fit.
    """
    check_shapes(query, key, value, num_heads, attn_mask, key_padding_mask)
    q, k, v = split_heads(query, num_heads), split_heads(key, num_heads), split_heads(value, num_heads)
    mask = merge_masks(attn_mask, key_padding_mask, q.dtype, q.size(0), num_heads)
    dead: Optional[Tensor] = None
    if mask is not None:
        mask, dead = open_mask(mask, q.size(2))

    weights: Optional[Tensor] = None
    if need_weights:
        scores = torch.matmul(q * float(q.size(3)) ** -0.5, k.transpose(-2, -1))  # [N, H, T, S]
        if mask is not None:
            scores = scores + mask
        weights = F.dropout(torch.softmax(scores, dim=-1), p=dropout_p, training=dropout_p > 0.0)
        if dead is not None:
            weights = weights.masked_fill(dead, 0.0)
        output = torch.matmul(weights, v)
        weights = weights.mean(dim=1)
    else:
        output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout_p)
        if dead is not None:
            output = output.masked_fill(dead, 0.0)
    return merge_heads(output), weights


class MyMultiheadAttention(nn.Module):
    """Multi-head attention; state-dict keys ``{q,k,v,out}_proj.{weight,bias}``.

    Args:
        embed_dim: E.
        num_heads: H; divides E.
        dropout: probability of dropping an attention weight in training.
        bias: whether the four projections have a bias.

    Raises:
        ValueError: if H does not divide E.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        check_heads(embed_dim, num_heads)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.kdim = self.head_dim
        self.vdim = self.head_dim
        self.dropout = dropout
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        reset_parameters(self)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        need_weights: bool = True,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Attend from ``query [T, N, E]`` to ``key`` and ``value [S, N, E]``.

        The masks are those of :func:`attend`. Returns the output ``[T, N, E]`` and the weights averaged over the heads
        ``[N, T, S]``. With ``need_weights=False`` the weights are None, which is faster.

        Raises:
            ValueError: if a size does not fit.
        """
        for x in (query, key, value):
            if x.size(-1) != self.embed_dim:
                raise ValueError(f"query, key and value must be {self.embed_dim} wide, got {x.size(-1)}")
        output, weights = attend(
            self.q_proj(query),
            self.k_proj(key),
            self.v_proj(value),
            self.num_heads,
            self.dropout if self.training else 0.0,
            attn_mask,
            key_padding_mask,
            need_weights,
        )
        return self.out_proj(output), weights


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_heads: int,
    dropout_p: float,
    out_proj: nn.Module,
    training: bool = True,
    key_padding_mask: Optional[Tensor] = None,
    q_proj: Optional[nn.Module] = None,
    k_proj: Optional[nn.Module] = None,
    v_proj: Optional[nn.Module] = None,
    attn_mask: Optional[Tensor] = None,
) -> Tuple[Tensor, Tensor]:
    """Attention as a function, with the argument order of the original code. Eager mode only: TorchScript functions
    cannot take modules as arguments.

    Shapes and masks are those of :class:`MyMultiheadAttention`. Returns the output ``[T, N, E]`` and the weights
    averaged over the heads ``[N, T, S]``.

    Raises:
        ValueError: if a projection is missing or a size does not fit.
    """
    if q_proj is None or k_proj is None or v_proj is None:
        raise ValueError("q_proj, k_proj and v_proj are all needed")
    output, weights = attend(
        q_proj(query),
        k_proj(key),
        v_proj(value),
        num_heads,
        dropout_p if training else 0.0,
        attn_mask,
        key_padding_mask,
        True,
    )
    assert weights is not None
    return out_proj(output), weights


def reset_parameters(module: nn.Module) -> None:
    """Fill every parameter of two or more dimensions with Xavier-uniform values (Glorot & Bengio, 2010)."""
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
