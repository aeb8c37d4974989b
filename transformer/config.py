"""The architecture of a Transformer: one frozen, validated dataclass."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


def build_activation(name: str) -> nn.Module:
    """The activation module for ``name``, one of :data:`ACTIVATIONS` (``gelu`` is the exact form with erf).

    Raises:
        ValueError: if there is no activation of this name.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]()


def check_heads(d_model: int, nhead: int) -> None:
    """Raise ``ValueError`` unless ``d_model`` is a positive multiple of ``nhead``."""
    if nhead < 1 or d_model < 1 or d_model % nhead != 0:
        raise ValueError(f"d_model ({d_model}) must be a positive multiple of the number of heads ({nhead})")


@dataclass(frozen=True)
class TransformerConfig:
    """The architecture of a :class:`~mytx.transformer.MyTransformer`.

    The defaults are the base model of "Attention Is All You Need" (Vaswani et al., 2017), with the final norms
    that ``torch.nn.Transformer`` adds. ``bias=False`` removes the bias of every linear layer and norm.

    Raises:
        ValueError: if a size is not positive, ``nhead`` does not divide ``d_model``, the dropout is outside [0, 1), the
            activation is unknown, or the epsilon is outside (0, 1).
    """

    d_model: int = 512
    nhead: int = 8
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    dim_feedforward: int = 2048
    dropout: float = 0.1
    activation: str = "relu"
    norm_first: bool = False
    final_norm: bool = True
    layer_norm_eps: float = 1e-5
    bias: bool = True

    def __post_init__(self) -> None:
        check_heads(self.d_model, self.nhead)
        for name in ("num_encoder_layers", "num_decoder_layers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.dim_feedforward < 1:
            raise ValueError(f"dim_feedforward must be positive, got {self.dim_feedforward}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if not 0.0 < self.layer_norm_eps < 1.0:
            raise ValueError(f"layer_norm_eps must be in (0, 1), got {self.layer_norm_eps}")
        build_activation(self.activation)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values; ``TransformerConfig(**values)`` reads them."""
        return asdict(self)
