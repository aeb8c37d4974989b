"""A translation model as many people write it after PyTorch's tutorial: ``nn.Transformer``, sequence first, with masks.

    python translation.py model.pt      # saves a state dict, as training would

This file does not use mytx.
"""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor, nn

SRC_VOCAB, TGT_VOCAB, WIDTH, LONGEST = 120, 90, 64, 200


class PositionalEncoding(nn.Module):
    def __init__(self, width: int, longest: int) -> None:
        super().__init__()
        rate = torch.exp(-torch.arange(0, width, 2) * math.log(10000) / width)
        angle = torch.arange(longest).unsqueeze(1) * rate
        table = torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)
        self.register_buffer("pos_embedding", table.unsqueeze(1))
        self.pos_embedding: Tensor
        self.dropout = nn.Dropout(0.1)

    def forward(self, embedded: Tensor) -> Tensor:
        return self.dropout(embedded + self.pos_embedding[: embedded.size(0)])


class TokenEmbedding(nn.Module):
    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.scale = math.sqrt(width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens) * self.scale


class Seq2SeqTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(
            WIDTH, nhead=4, num_encoder_layers=2, num_decoder_layers=2, dim_feedforward=128
        )
        self.generator = nn.Linear(WIDTH, TGT_VOCAB)
        self.src_tok_emb = TokenEmbedding(SRC_VOCAB, WIDTH)
        self.tgt_tok_emb = TokenEmbedding(TGT_VOCAB, WIDTH)
        self.positional_encoding = PositionalEncoding(WIDTH, LONGEST)

    def forward(
        self,
        src: Tensor,
        trg: Tensor,
        src_mask: Tensor,
        tgt_mask: Tensor,
        src_padding_mask: Tensor,
        tgt_padding_mask: Tensor,
        memory_key_padding_mask: Tensor,
    ) -> Tensor:
        source = self.positional_encoding(self.src_tok_emb(src))
        target = self.positional_encoding(self.tgt_tok_emb(trg))
        output = self.transformer(
            source, target, src_mask, tgt_mask, None, src_padding_mask, tgt_padding_mask, memory_key_padding_mask
        )
        return self.generator(output)

    def encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        return self.transformer.encoder(self.positional_encoding(self.src_tok_emb(src)), src_mask)

    def decode(self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor) -> Tensor:
        return self.transformer.decoder(self.positional_encoding(self.tgt_tok_emb(tgt)), memory, tgt_mask)


def build() -> nn.Module:
    return Seq2SeqTransformer()


if __name__ == "__main__":
    torch.manual_seed(0)
    model = build()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    torch.save(model.state_dict(), sys.argv[1])
