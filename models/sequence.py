"""Models from ids to ids: translation (one embedding for each side) and couplets (one embedding for both sides)."""

from typing import TYPE_CHECKING, Optional, Unpack

import torch
from torch import Tensor, nn

from ..transformer import MyTransformer, causal_mask
from ..transformer.attention import reset_parameters
from .config import Extras, ModelConfig
from .embedding import PositionalEncoding, TokenEmbedding


class SequenceModel(nn.Module):
    """Base class of both models. Batch first; the decoder is causal.

    Letters: ``N`` batch, ``S`` source length, ``T`` target length, ``E`` width, ``V`` target vocabulary.
    """

    if TYPE_CHECKING:  # TorchScript would take the annotation for an attribute
        classification: nn.Module

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.my_transformer = MyTransformer.from_config(config.transformer)
        self.pos_embedding = PositionalEncoding(
            config.transformer.d_model, config.transformer.dropout, config.max_length
        )

    def embed_source(self, src: Tensor) -> Tensor:
        """Ids ``[S, N]`` -> vectors ``[S, N, E]``, without positions."""
        raise NotImplementedError

    def embed_target(self, tgt: Tensor) -> Tensor:
        """Ids ``[T, N]`` -> vectors ``[T, N, E]``, without positions."""
        raise NotImplementedError

    @torch.jit.export
    def encode(self, src: Tensor, src_key_padding_mask: Optional[Tensor] = None) -> Tensor:
        """``src [N, S]`` int64, ``src_key_padding_mask [N, S]`` (True = padding) -> memory ``[N, S, E]``.

        Raises:
            ValueError: if S is larger than the number of positions, or the mask does not fit.
        """
        embedded = self.pos_embedding(self.embed_source(src.transpose(0, 1)))
        memory = self.my_transformer.encoder(embedded, src_key_padding_mask=src_key_padding_mask)
        return memory.transpose(0, 1)

    @torch.jit.export
    def decode(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_key_padding_mask: Optional[Tensor] = None,
        memory_key_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """``tgt [N, T]`` int64, ``memory [N, S, E]``, padding ``[N, T]`` and ``[N, S]`` -> logits ``[N, T, V]``.

        Position i attends to positions 0 to i of ``tgt``.

        Raises:
            ValueError: if T is larger than the number of positions, or a mask does not fit.
        """
        embedded = self.pos_embedding(self.embed_target(tgt.transpose(0, 1)))
        output = self.my_transformer.decoder(
            embedded,
            memory.transpose(0, 1),
            tgt_mask=causal_mask(tgt.size(1), tgt.device),
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
        )
        return self.classification(output).transpose(0, 1)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_key_padding_mask: Optional[Tensor] = None,
        tgt_key_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """``src [N, S]``, ``tgt [N, T]`` -> logits ``[N, T, V]``. Both stacks hide the padding of the source."""
        memory = self.encode(src, src_key_padding_mask)
        return self.decode(tgt, memory, tgt_key_padding_mask, src_key_padding_mask)


class TranslationModel(SequenceModel):
    """A translation model: one embedding for each side.

    Args:
        src_vocab_size: number of rows of ``src_token_embedding``.
        tgt_vocab_size: number of rows of ``tgt_token_embedding`` and of the output projection ``classification``.
        d_model, nhead, num_encoder_layers, num_decoder_layers, dim_feedforward, dropout: as in
            :class:`~mytx.transformer.TransformerConfig`.
        extras: :class:`~mytx.models.config.Extras`.

    Raises:
        ValueError: if a size or id does not fit.
    """

    def __init__(
        self,
        src_vocab_size: int,
        tgt_vocab_size: int,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        **extras: Unpack[Extras],
    ) -> None:
        sizes = {
            "src_vocab_size": src_vocab_size,
            "tgt_vocab_size": tgt_vocab_size,
            "d_model": d_model,
            "nhead": nhead,
            "num_encoder_layers": num_encoder_layers,
            "num_decoder_layers": num_decoder_layers,
            "dim_feedforward": dim_feedforward,
            "dropout": dropout,
        }
        config = ModelConfig.build("translation", sizes, extras)
        super().__init__(config)
        self.src_token_embedding = TokenEmbedding(src_vocab_size, d_model, config.scale)
        self.tgt_token_embedding = TokenEmbedding(tgt_vocab_size, d_model, config.scale)
        self.classification = nn.Linear(d_model, tgt_vocab_size)
        reset_parameters(self)

    def embed_source(self, src: Tensor) -> Tensor:
        """Ids ``[S, N]`` -> vectors ``[S, N, E]``, without positions."""
        return self.src_token_embedding(src)

    def embed_target(self, tgt: Tensor) -> Tensor:
        """Ids ``[T, N]`` -> vectors ``[T, N, E]``, without positions."""
        return self.tgt_token_embedding(tgt)


class CoupletModel(SequenceModel):
    """One embedding for both sides. The arguments are those of :class:`TranslationModel`, with one ``vocab_size``."""

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        **extras: Unpack[Extras],
    ) -> None:
        sizes = {
            "src_vocab_size": vocab_size,
            "tgt_vocab_size": vocab_size,
            "d_model": d_model,
            "nhead": nhead,
            "num_encoder_layers": num_encoder_layers,
            "num_decoder_layers": num_decoder_layers,
            "dim_feedforward": dim_feedforward,
            "dropout": dropout,
        }
        config = ModelConfig.build("couplet", sizes, extras)
        super().__init__(config)
        self.token_embedding = TokenEmbedding(vocab_size, d_model, config.scale)
        self.classification = nn.Linear(d_model, vocab_size)
        reset_parameters(self)

    def embed_source(self, src: Tensor) -> Tensor:
        """Ids ``[S, N]`` -> vectors ``[S, N, E]``, without positions."""
        return self.token_embedding(src)

    def embed_target(self, tgt: Tensor) -> Tensor:
        """Ids ``[T, N]`` -> vectors ``[T, N, E]``, without positions."""
        return self.token_embedding(tgt)


def source_embedding(model: SequenceModel) -> TokenEmbedding:
    """The embedding of source ids in ``model``."""
    if isinstance(model, CoupletModel):
        return model.token_embedding
    assert isinstance(model, TranslationModel)
    return model.src_token_embedding


def target_embedding(model: SequenceModel) -> TokenEmbedding:
    """The embedding of target ids in ``model``."""
    if isinstance(model, CoupletModel):
        return model.token_embedding
    assert isinstance(model, TranslationModel)
    return model.tgt_token_embedding
