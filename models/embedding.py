"""Token embeddings and positions."""

import math
from typing import Optional

import torch
from torch import Tensor, nn


class TokenEmbedding(nn.Module):
    """The vectors of ids, times a scale; state-dict key ``embedding.weight``.

    Args:
        vocab_size: V.
        emb_size: E.
        scale: factor on the vectors; None means sqrt(E), as in Vaswani et al., section 3.4.
    """

    def __init__(self, vocab_size: int, emb_size: int, scale: Optional[float] = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_size)
        self.emb_size = emb_size
        self.scale = math.sqrt(emb_size) if scale is None else scale

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 ids of any shape ``[...]`` -> ``[..., E]``."""
        return self.embedding(tokens) * self.scale


class PositionalEncoding(nn.Module):
    """Adds a fixed vector to each position, from position 0 on: sine in even columns, cosine in odd columns.

    The table is the buffer ``pe [max_len, 1, E]``, so that a checkpoint can bring its own table.

    Args:
        d_model: E.
        dropout: probability of dropout on the sum.
        max_len: number of positions.
    """

    def __init__(self, d_model: int, dropout: float = 0.1, max_len: int = 5000) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("pe", sinusoidal_positions(max_len, d_model).unsqueeze(1))
        self.pe: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """``[L, N, E]`` -> ``[L, N, E]``.

        Raises:
            ValueError: if L is larger than the number of positions.
        """
        if x.size(0) > self.pe.size(0):
            raise ValueError(f"a sequence of length {x.size(0)} does not fit into {self.pe.size(0)} positions")
        return self.dropout(x + self.pe[: x.size(0)])


def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    """The table of Vaswani et al., section 3.5: float32 ``[length, d_model]`` with columns sin, cos, sin, cos, …"""
    position = torch.arange(length, dtype=torch.float).unsqueeze(1)
    rate = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
    table = torch.zeros(length, d_model)
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate[: d_model // 2])
    return table
