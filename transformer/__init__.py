"""The encoder-decoder Transformer itself: attention, encoder, decoder, masks, configuration. Knows nothing of export.

Dimension letters in all docstrings of this package:
``T`` target (query) length, ``S`` source (key) length, ``N`` batch, ``H`` heads, ``E`` model width, ``D`` = E / H.
Tensors are sequence first: ``src [S, N, E]``, ``tgt [T, N, E]``.
"""

from .attention import MyMultiheadAttention, multi_head_attention_forward
from .config import ACTIVATIONS, TransformerConfig
from .decoder import MyTransformerDecoder, MyTransformerDecoderLayer
from .encoder import MyTransformerEncoder, MyTransformerEncoderLayer
from .masks import causal_mask, generate_square_subsequent_mask
from .shapes import trace_shapes
from .transformer import MyTransformer

__all__ = [
    "ACTIVATIONS",
    "MyMultiheadAttention",
    "MyTransformer",
    "MyTransformerDecoder",
    "MyTransformerDecoderLayer",
    "MyTransformerEncoder",
    "MyTransformerEncoderLayer",
    "TransformerConfig",
    "causal_mask",
    "generate_square_subsequent_mask",
    "multi_head_attention_forward",
    "trace_shapes",
]
