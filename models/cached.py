"""The decoder of a sequence model, one position at a time, with a KV cache.

Every search runs it: in eager mode, scripted, and exported as the ``step`` graph. So its operations are those that such
a graph should have:

* A row is one hypothesis at one position. Activations are ``[R, E]``, and every projection is a plain matrix product
  (ONNX ``Gemm``) with the weight as PyTorch stores it. One product projects query, key and value.
* The scale of the softmax is part of the query's weight.
* Keys are stored transposed, as the product with the query needs them.
* All hypotheses of a sentence share the keys and values of its memory.

Letters: ``N`` sentences, ``B`` hypotheses for each (beams), ``R = N * B`` rows, ``P`` past positions, ``S`` source
length, ``E`` width, ``H`` heads, ``D = E / H``, ``V`` target vocabulary. ``*`` is either ``R`` or ``N, B``.

Multi-head attention and the layers: Vaswani et al., "Attention Is All You Need", https://arxiv.org/abs/1706.03762
"""

import math
from typing import TYPE_CHECKING, Any, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..transformer.attention import MyMultiheadAttention
from ..transformer.decoder import MyTransformerDecoderLayer
from .sequence import SequenceModel, target_embedding


def softmax_scale(attention: MyMultiheadAttention) -> float:
    """The factor on the product of queries and keys."""
    return float(attention.head_dim) ** -0.5


def fused(projections: List[nn.Linear], scale: float = 1.0) -> Tuple[Tensor, Optional[Tensor]]:
    """The concatenated weights and biases of ``projections``; those of the first are multiplied by ``scale``.

    A missing bias is 0 if another projection has one; if none has, the result is None.
    """
    weights = [projection.weight.detach() for projection in projections]
    biases = [None if projection.bias is None else projection.bias.detach() for projection in projections]
    known = [w.new_zeros(w.size(0)) if b is None else b for b, w in zip(biases, weights, strict=True)]
    if scale != 1.0:
        weights[0], known[0] = weights[0] * scale, known[0] * scale
    # A cat of one tensor would add a node to the graph.
    weight = torch.cat(weights) if len(weights) > 1 else weights[0].clone()
    if all(b is None for b in biases):
        return weight, None
    return weight, torch.cat(known) if len(known) > 1 else known[0].clone()


class CachedSelfAttention(nn.Module):
    """Self-attention from one new position to itself and the past.

    The buffers ``in_proj_weight [3E, E]`` and ``in_proj_bias [3E]`` (query, key, value) are copies; the part of the
    query includes the scale of the softmax. ``out_proj`` is shared with the model.
    """

    def __init__(self, attention: MyMultiheadAttention) -> None:
        super().__init__()
        self.heads = attention.num_heads
        self.head_dim = attention.head_dim
        weight, bias = fused([attention.q_proj, attention.k_proj, attention.v_proj], softmax_scale(attention))
        self.register_buffer("in_proj_weight", weight)
        self.register_buffer("in_proj_bias", bias)
        self.in_proj_weight: Tensor
        self.in_proj_bias: Optional[Tensor]
        self.out_proj = attention.out_proj

    def forward(self, x: Tensor, key: Tensor, value: Tensor, rows: List[int]) -> Tuple[Tensor, Tensor, Tensor]:
        """``x [R, E]``, key ``[*, H, D, P]``, value ``[*, H, P, D]`` -> ``[R, E]``, key and value with P + 1 positions.

        ``rows`` is the shape of ``*``; one of its lengths may be -1.
        """
        projected = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        # TorchScript does not support [*rows, ...].
        shape, turned = rows + [3 * self.heads, 1, self.head_dim], rows + [self.heads, self.head_dim, 1]  # noqa: RUF005
        q, k, v = projected.view(shape).chunk(3, dim=-3)  # [*, H, 1, D]
        key = torch.cat([key, k.reshape(turned)], dim=-1)
        value = torch.cat([value, v], dim=-2)
        weights = torch.softmax(torch.matmul(q, key), dim=-1)  # [*, H, 1, P + 1]
        output = torch.matmul(weights, value).view(-1, self.heads * self.head_dim)
        return self.out_proj(output), key, value


class CachedCrossAttention(nn.Module):
    """Cross-attention from one new position to the memory, whose keys and values are computed once.

    The buffers ``q_proj_weight [E, E]`` and ``q_proj_bias [E]``, which include the scale of the softmax, and
    ``kv_proj_weight [2E, E]`` and ``kv_proj_bias [2E]`` are copies. ``out_proj`` is shared with the model.
    """

    def __init__(self, attention: MyMultiheadAttention) -> None:
        super().__init__()
        self.heads = attention.num_heads
        self.head_dim = attention.head_dim
        weight, bias = fused([attention.q_proj], softmax_scale(attention))
        self.register_buffer("q_proj_weight", weight)
        self.register_buffer("q_proj_bias", bias)
        weight, bias = fused([attention.k_proj, attention.v_proj])
        self.register_buffer("kv_proj_weight", weight)
        self.register_buffer("kv_proj_bias", bias)
        self.q_proj_weight: Tensor
        self.q_proj_bias: Optional[Tensor]
        self.kv_proj_weight: Tensor
        self.kv_proj_bias: Optional[Tensor]
        self.out_proj = attention.out_proj

    def project(self, memory: Tensor, dead: Tensor) -> Tuple[Tensor, Tensor]:
        """``memory [N, S, E]``, ``dead [N]`` -> key ``[N, H, D, S]``, value ``[N, H, S, D]``; 0 if ``dead``."""
        rows = memory.reshape(-1, self.heads * self.head_dim)
        k, v = F.linear(rows, self.kv_proj_weight, self.kv_proj_bias).chunk(2, dim=1)
        shape = [memory.size(0), memory.size(1), self.heads, self.head_dim]
        # Contiguous: otherwise every step copies them before the product.
        key = k.reshape(shape).permute(0, 2, 3, 1).contiguous()
        value = v.reshape(shape).permute(0, 2, 1, 3).contiguous()
        return key, value.masked_fill(dead.view(-1, 1, 1, 1), 0.0)

    def forward(self, x: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """``x [R, E]``, key and value from :meth:`project`, ``mask [N, 1, 1, S]`` (added) -> ``[R, E]``."""
        query = F.linear(x, self.q_proj_weight, self.q_proj_bias)
        # [N, H, B, D]: one product serves all hypotheses of a sentence.
        query = query.view(key.size(0), -1, self.heads, self.head_dim).transpose(1, 2)
        weights = torch.softmax(torch.matmul(query, key) + mask, dim=-1)  # [N, H, B, S]
        output = torch.matmul(weights, value).transpose(1, 2).contiguous()
        return self.out_proj(output.view(-1, self.heads * self.head_dim))


class CachedLayer(nn.Module):
    """A decoder layer at one position, without dropout. Norms and feed-forward are the modules of the layer itself."""

    def __init__(self, layer: MyTransformerDecoderLayer) -> None:
        super().__init__()
        self.norm_first = layer.norm_first
        self.self_attn = CachedSelfAttention(layer.self_attn)
        self.multihead_attn = CachedCrossAttention(layer.multihead_attn)
        self.norm1, self.norm2, self.norm3 = layer.norm1, layer.norm2, layer.norm3
        self.linear1, self.activation, self.linear2 = layer.linear1, layer.activation, layer.linear2

    def forward(
        self,
        x: Tensor,
        key: Tensor,
        value: Tensor,
        cross_key: Tensor,
        cross_value: Tensor,
        mask: Tensor,
        rows: List[int],
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """``x [R, E]``, the others as in the attentions -> ``[R, E]``, key and value with P + 1 positions."""
        if self.norm_first:
            attended, key, value = self.self_attn(self.norm1(x), key, value, rows)
            x = x + attended
            x = x + self.multihead_attn(self.norm2(x), cross_key, cross_value, mask)
            return x + self._feed_forward(self.norm3(x)), key, value
        attended, key, value = self.self_attn(x, key, value, rows)
        x = self.norm1(x + attended)
        x = self.norm2(x + self.multihead_attn(x, cross_key, cross_value, mask))
        return self.norm3(x + self._feed_forward(x)), key, value

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.activation(self.linear1(x)))


class CachedDecoder(nn.Module):
    """Computes what ``model.decode`` computes in evaluation mode, one position at a time::

        cross = decoder.cross(memory, src_key_padding_mask)
        past = decoder.empty(rows)
        logits, past = decoder.step(tgt, past, cross, src_key_padding_mask)

    Row ``r`` belongs to sentence ``r // B``. To change the hypotheses in the rows, reorder ``past`` with
    ``index_select``. To drop sentences, select from ``cross`` and the mask too.

    The fused weights are copies, in the dtype that the model has now. All other weights are shared with the model. So
    build a new decoder when the model's weights have changed, and convert the model to another dtype first:
    ``.double()`` on the decoder would also convert the weights that it shares with the model.

    Args:
        model: a translation or couplet model with at least one decoder layer. It is not changed.

    Raises:
        ValueError: if the model has no decoder layers, and so no past.
    """

    if TYPE_CHECKING:  # of CachedLayer; TorchScript would take the annotation for an attribute
        layers: Any

    def __init__(self, model: SequenceModel) -> None:
        super().__init__()
        decoder = model.my_transformer.decoder
        if len(decoder.layers) == 0:
            raise ValueError("the model has 0 decoder layers, a cached decoder needs at least 1: there is no past")
        self.token_embedding = target_embedding(model)
        self.register_buffer("pe", model.pos_embedding.pe)
        self.pe: Tensor
        layers: List[nn.Module] = []
        for layer in decoder.layers:
            assert isinstance(layer, MyTransformerDecoderLayer)
            layers.append(CachedLayer(layer))
        self.layers = nn.ModuleList(layers)
        self.norm = decoder.norm
        self.classification = model.classification
        self.heads = model.my_transformer.nhead
        self.head_dim = model.my_transformer.d_model // self.heads
        self.training = model.training

    @torch.jit.export
    def cross(self, memory: Tensor, src_key_padding_mask: Tensor) -> List[Tensor]:
        """The keys ``[N, H, D, S]`` and values ``[N, H, S, D]`` of the memory: key and value of layer 0, of layer 1, …

        The values of a sentence that is all padding are 0, so that attention to it is 0.

        Args:
            memory: ``[N, S, E]``.
            src_key_padding_mask: bool ``[N, S]``, True = padding.
        """
        dead = src_key_padding_mask.all(dim=1)
        result: List[Tensor] = []
        for layer in self.layers:
            key, value = layer.multihead_attn.project(memory, dead)
            result.append(key)
            result.append(value)
        return result

    @torch.jit.export
    def empty(self, rows: int) -> List[Tensor]:
        """The past before the first step, P = 0: for each layer a key ``[R, H, D, 0]`` and a value ``[R, H, 0, D]``."""
        result: List[Tensor] = []
        for _ in self.layers:
            result.append(self.pe.new_zeros([rows, self.heads, self.head_dim, 0]))
            result.append(self.pe.new_zeros([rows, self.heads, 0, self.head_dim]))
        return result

    @torch.jit.export
    def additive(self, src_key_padding_mask: Tensor) -> Tensor:
        """Bool ``[N, S]``, True = padding -> ``[N, 1, 1, S]`` to add to the scores: -inf for padding, else 0.

        A row that is all padding stays open, because the softmax of a row of -inf is NaN. Its values are 0, see
        :meth:`cross`.
        """
        closed = src_key_padding_mask & ~src_key_padding_mask.all(dim=1, keepdim=True)
        zeros = torch.zeros_like(closed, dtype=self.pe.dtype)
        return zeros.masked_fill(closed, -math.inf).unsqueeze(1).unsqueeze(1)

    @torch.jit.export
    def advance(
        self, tgt: Tensor, past: List[Tensor], cross: List[Tensor], mask: Tensor
    ) -> Tuple[Tensor, List[Tensor]]:
        """:meth:`step` with the ``mask`` from :meth:`additive`, which is the same in every step."""
        position = past[0].size(-1)
        if position >= self.pe.size(0):
            raise ValueError(f"position {position} does not fit into {self.pe.size(0)} positions")
        # One length that never changes, and -1: so the graph computes no shapes in its steps.
        rows = [-1] if past[0].dim() == 4 else [cross[0].size(0), -1]
        x = self.token_embedding(tgt.reshape(-1)) + self.pe[position]  # [R, E]
        grown: List[Tensor] = []
        for i, layer in enumerate(self.layers):
            x, key, value = layer(x, past[2 * i], past[2 * i + 1], cross[2 * i], cross[2 * i + 1], mask, rows)
            grown.append(key)
            grown.append(value)
        if self.norm is not None:
            x = self.norm(x)
        return self.classification(x), grown

    @torch.jit.export
    def step(
        self, tgt: Tensor, past: List[Tensor], cross: List[Tensor], src_key_padding_mask: Tensor
    ) -> Tuple[Tensor, List[Tensor]]:
        """Decode one more position.

        Args:
            tgt: int64 ``[R, 1]`` or ``[N, B]``, the ids at position P.
            past: for each layer a key ``[*, H, D, P]`` and a value ``[*, H, P, D]``; P may be 0.
            cross: result of :meth:`cross`.
            src_key_padding_mask: bool ``[N, S]``, True = padding; the mask that was given to :meth:`cross`.

        Returns:
            Logits ``[R, V]`` of the ids at position P + 1, and the past with P + 1 positions.

        Raises:
            ValueError: if P is not a position of the model.
        """
        return self.advance(tgt, past, cross, self.additive(src_key_padding_mask))

    def forward(
        self, tgt: Tensor, past: List[Tensor], cross: List[Tensor], src_key_padding_mask: Tensor
    ) -> Tuple[Tensor, List[Tensor]]:
        """The same as :meth:`step`."""
        return self.step(tgt, past, cross, src_key_padding_mask)
