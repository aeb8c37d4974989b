"""The whole Transformer: encoder and decoder."""

from typing import Any, Optional

from torch import Tensor, nn

from . import masks
from .attention import reset_parameters
from .config import TransformerConfig
from .decoder import MyTransformerDecoder, MyTransformerDecoderLayer
from .encoder import MyTransformerEncoder, MyTransformerEncoderLayer


class MyTransformer(nn.Module):
    """Encoder and decoder stacks on float tensors, sequence first. The arguments and their limits are those of
    :class:`~mytx.transformer.TransformerConfig`.
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        norm_first: bool = False,
        final_norm: bool = True,
        layer_norm_eps: float = 1e-5,
        bias: bool = True,
    ) -> None:
        super().__init__()
        config = TransformerConfig(
            d_model=d_model,
            nhead=nhead,
            num_encoder_layers=num_encoder_layers,
            num_decoder_layers=num_decoder_layers,
            dim_feedforward=dim_feedforward,
            dropout=dropout,
            activation=activation,
            norm_first=norm_first,
            final_norm=final_norm,
            layer_norm_eps=layer_norm_eps,
            bias=bias,
        )
        self.config = config
        self.d_model = d_model
        self.nhead = nhead
        self.encoder = build_encoder(config)
        self.decoder = build_decoder(config)
        reset_parameters(self)

    @classmethod
    def from_config(cls, config: TransformerConfig) -> "MyTransformer":
        """A new model with the architecture of ``config``."""
        return cls(**config.to_dict())

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Optional[Tensor] = None,
        tgt_mask: Optional[Tensor] = None,
        memory_mask: Optional[Tensor] = None,
        src_key_padding_mask: Optional[Tensor] = None,
        tgt_key_padding_mask: Optional[Tensor] = None,
        memory_key_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """``src [S, N, E]``, ``tgt [T, N, E]`` -> ``[T, N, E]``.

        Attention masks are bool (True = may not attend) or float (added), of shape ``[Q, K]`` or ``[N*H, Q, K]`` with
        query length Q and key length K. Padding masks are bool (True = padding) or float (added), ``[N, K]``.
        A query that may attend nowhere gets zero attention.

        Raises:
            ValueError: if a size does not fit.
        """
        if src.size(-1) != self.d_model or tgt.size(-1) != self.d_model:  # otherwise a pre-LN norm fails
            raise ValueError(f"src and tgt must be {self.d_model} wide, got {src.size(-1)} and {tgt.size(-1)}")
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask)
        return self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
        )

    def generate_square_subsequent_mask(self, sz: int) -> Tensor:
        """The causal mask: float32 ``[sz, sz]``, 0 on and below the diagonal, -inf above."""
        return masks.generate_square_subsequent_mask(sz)


def build_encoder(config: TransformerConfig) -> MyTransformerEncoder:
    """The encoder stack of ``config``."""
    layer = MyTransformerEncoderLayer(**layer_arguments(config))
    return MyTransformerEncoder(layer, config.num_encoder_layers, build_norm(config))


def build_decoder(config: TransformerConfig) -> MyTransformerDecoder:
    """The decoder stack of ``config``."""
    layer = MyTransformerDecoderLayer(**layer_arguments(config))
    return MyTransformerDecoder(layer, config.num_decoder_layers, build_norm(config))


def layer_arguments(config: TransformerConfig) -> dict[str, Any]:
    """Arguments for the constructors of the layers, from ``config``."""
    whole_stack = ("num_encoder_layers", "num_decoder_layers", "final_norm")
    return {name: value for name, value in config.to_dict().items() if name not in whole_stack}


def build_norm(config: TransformerConfig) -> Optional[nn.LayerNorm]:
    """The norm after a stack; None if ``config`` has no final norms."""
    if not config.final_norm:
        return None
    return nn.LayerNorm(config.d_model, eps=config.layer_norm_eps, bias=config.bias)
