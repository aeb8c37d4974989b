"""A model from ids to classes: an encoder, pooling over positions, and a classifier."""

from typing import Optional, Unpack

import torch
from torch import Tensor, nn

from ..transformer.transformer import build_encoder
from .config import Extras, ModelConfig
from .embedding import PositionalEncoding, TokenEmbedding


class ClassificationModel(nn.Module):
    """Encoder only. Batch first; letters: ``N`` batch, ``S`` length, ``E`` width, ``C`` classes.

    Args:
        vocab_size: number of rows of ``src_token_embedding``.
        d_model, nhead, num_encoder_layers, dim_feedforward, dropout: as in
            :class:`~mytx.transformer.TransformerConfig`.
        dim_classification: width between the two layers of ``classifier``.
        num_classification: C.
        pooling: ``sum``, ``avg`` or ``last`` over the tokens that are not padding. ``upstream-sum``, ``upstream-avg``
            and ``upstream-last`` pool over padding too, like the original code, for checkpoints that were trained so.
        extras: :class:`~mytx.models.config.Extras`.

    Raises:
        ValueError: if a size or id does not fit.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dim_classification: int = 64,
        num_classification: int = 4,
        dropout: float = 0.1,
        pooling: str = "sum",
        **extras: Unpack[Extras],
    ) -> None:
        super().__init__()
        sizes = {
            "src_vocab_size": vocab_size,
            "d_model": d_model,
            "nhead": nhead,
            "num_encoder_layers": num_encoder_layers,
            "num_decoder_layers": 0,
            "dim_feedforward": dim_feedforward,
            "dropout": dropout,
            "dim_classification": dim_classification,
            "num_classification": num_classification,
            "pooling": pooling,
        }
        config = ModelConfig.build("classification", sizes, extras)
        self.config = config
        self.pooling = pooling.removeprefix("upstream-")
        self.skip_padding = not pooling.startswith("upstream-")
        self.pos_embedding = PositionalEncoding(d_model, dropout, config.max_length)
        self.src_token_embedding = TokenEmbedding(vocab_size, d_model, config.scale)
        self.encoder = build_encoder(config.transformer)
        self.classifier = nn.Sequential(
            nn.Linear(d_model, dim_classification),
            nn.Dropout(dropout),
            nn.Linear(dim_classification, num_classification),
        )

    @torch.jit.export
    def encode(self, src: Tensor, src_key_padding_mask: Optional[Tensor] = None) -> Tensor:
        """``src [N, S]`` int64, ``src_key_padding_mask [N, S]`` (True = padding) -> memory ``[N, S, E]``.

        Raises:
            ValueError: if S is larger than the number of positions, or the mask does not fit.
        """
        embedded = self.pos_embedding(self.src_token_embedding(src.transpose(0, 1)))
        return self.encoder(embedded, src_key_padding_mask=src_key_padding_mask).transpose(0, 1)

    def pool(self, memory: Tensor, padding: Optional[Tensor]) -> Tensor:
        """``memory [N, S, E]``, ``padding [N, S]`` -> ``[N, E]``; 0 for a sentence that is all padding."""
        if padding is None or not self.skip_padding:
            padding = torch.zeros_like(memory[:, :, 0], dtype=torch.bool)
        real = (~padding).to(memory.dtype).unsqueeze(-1)  # [N, S, 1]
        if self.pooling == "last":
            after = real.flip(1).cumsum(1).flip(1)  # number of real tokens from here to the end
            real = real * (after == 1.0).to(memory.dtype)
        # masked_fill, not a product: the values at padding are arbitrary, and 0 * inf is NaN.
        pooled = memory.masked_fill(real == 0.0, 0.0).sum(1)
        if self.pooling == "avg":
            pooled = pooled / real.sum(1).clamp(min=1.0)
        return pooled

    def forward(self, src: Tensor, src_key_padding_mask: Optional[Tensor] = None) -> Tensor:
        """``src [N, S]``, ``src_key_padding_mask [N, S]`` -> logits ``[N, C]``."""
        return self.classifier(self.pool(self.encode(src, src_key_padding_mask), src_key_padding_mask))
