"""The decoder of a sequence model one position at a time, with the keys and values of the past kept.

It is what runs inside a decode: eagerly, scripted, and exported as the ``step`` graph. So it is written in the
operations that such a graph should have. A row is one hypothesis at one position, activations are ``[R, E]``, and every
projection is a plain matrix product (ONNX ``Gemm``) with the weight as PyTorch stores it; query, key and value are
projected by one of them; the scale of the softmax goes to the query, which is small; keys are kept transposed, as the
product with a query wants them; and all hypotheses of a sentence share its keys and values of the memory.

Letters: ``N`` sentences, ``B`` hypotheses of each (beams), ``R = N * B`` rows, ``P`` past positions, ``S`` source
length, ``E`` width, ``H`` heads, ``D = E / H``, ``V`` target vocabulary.

Multi-head attention and the layers: Vaswani et al., "Attention Is All You Need", https://arxiv.org/abs/1706.03762
"""

import math
from typing import TYPE_CHECKING, Any, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..transformer.attention import MyMultiheadAttention
from ..transformer.decoder import MyTransformerDecoderLayer
from .embedding import TokenEmbedding
from .sequence import CoupletModel, SequenceModel, TranslationModel


def fused(projections: List[nn.Linear]) -> Tuple[Tensor, Optional[Tensor]]:
    """The weights of ``projections`` on top of each other, and their biases; a missing one is 0, None if all are."""
    weight = torch.cat([projection.weight.detach() for projection in projections])
    biases = [projection.bias for projection in projections]
    if all(bias is None for bias in biases):
        return weight, None
    missing = [projection.weight.new_zeros(projection.out_features) for projection in projections]
    return weight, torch.cat([zeros if b is None else b.detach() for b, zeros in zip(biases, missing, strict=True)])


class CachedSelfAttention(nn.Module):
    """Self-attention of one new position to itself and the past.

    Buffers ``in_proj_weight [3E, E]`` and ``in_proj_bias [3E]`` (query, key, value) are copies; ``out_proj`` is shared.
    """

    def __init__(self, attention: MyMultiheadAttention) -> None:
        super().__init__()
        self.heads = attention.num_heads
        self.head_dim = attention.head_dim
        self.scale = float(attention.head_dim) ** -0.5
        weight, bias = fused([attention.q_proj, attention.k_proj, attention.v_proj])
        self.register_buffer("in_proj_weight", weight)
        self.register_buffer("in_proj_bias", bias)
        self.in_proj_weight: Tensor
        self.in_proj_bias: Optional[Tensor]
        self.out_proj = attention.out_proj

    def forward(self, x: Tensor, key: Tensor, value: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """``x [R, E]``, ``key [R, H, D, P]``, ``value [R, H, P, D]`` -> ``[R, E]`` and both grown by one position."""
        q, k, v = F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=1)
        query = (q * self.scale).view(-1, self.heads, 1, self.head_dim)
        key = torch.cat([key, k.view(-1, self.heads, self.head_dim, 1)], dim=3)
        value = torch.cat([value, v.view(-1, self.heads, 1, self.head_dim)], dim=2)
        weights = torch.softmax(torch.matmul(query, key), dim=-1)  # [R, H, 1, P + 1]
        output = torch.matmul(weights, value).view(-1, self.heads * self.head_dim)
        return self.out_proj(output), key, value


class CachedCrossAttention(nn.Module):
    """Attention of one new position to the memory, whose keys and values are computed once.

    Buffers ``kv_proj_weight [2E, E]`` and ``kv_proj_bias [2E]`` are copies; ``q_proj`` and ``out_proj`` are shared.
    """

    def __init__(self, attention: MyMultiheadAttention, beams: bool) -> None:
        super().__init__()
        self.beams = beams
        self.heads = attention.num_heads
        self.head_dim = attention.head_dim
        self.scale = float(attention.head_dim) ** -0.5
        weight, bias = fused([attention.k_proj, attention.v_proj])
        self.register_buffer("kv_proj_weight", weight)
        self.register_buffer("kv_proj_bias", bias)
        self.kv_proj_weight: Tensor
        self.kv_proj_bias: Optional[Tensor]
        self.q_proj = attention.q_proj
        self.out_proj = attention.out_proj

    def project(self, memory: Tensor, dead: Tensor) -> Tuple[Tensor, Tensor]:
        """``memory [N, S, E]``, ``dead [N]`` -> key ``[N, H, D, S]``, value ``[N, H, S, D]``, 0 where ``dead``."""
        rows = memory.reshape(-1, self.heads * self.head_dim)
        k, v = F.linear(rows, self.kv_proj_weight, self.kv_proj_bias).chunk(2, dim=1)
        shape = [memory.size(0), memory.size(1), self.heads, self.head_dim]
        # Contiguous: otherwise every step copies them before its product.
        key = k.reshape(shape).permute(0, 2, 3, 1).contiguous()
        value = v.reshape(shape).permute(0, 2, 1, 3).contiguous()
        return key, value.masked_fill(dead.view(-1, 1, 1, 1), 0.0)

    def forward(self, x: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """``x [R, E]``, key and value as from :meth:`project`, ``mask [N, 1, 1, S]`` (added) -> ``[R, E]``."""
        query = self.q_proj(x) * self.scale
        if self.beams:  # [N, H, B, D]: one product for all hypotheses of a sentence
            query = query.view(key.size(0), -1, self.heads, self.head_dim).transpose(1, 2)
        else:
            query = query.view(-1, self.heads, 1, self.head_dim)
        weights = torch.softmax(torch.matmul(query, key) + mask, dim=-1)  # [N, H, B, S]
        output = torch.matmul(weights, value)
        if self.beams:
            output = output.transpose(1, 2)
        return self.out_proj(output.reshape(-1, self.heads * self.head_dim))


class CachedLayer(nn.Module):
    """A decoder layer at one position. Norms and feed-forward are the layer's own modules; dropout is left out."""

    def __init__(self, layer: MyTransformerDecoderLayer, beams: bool) -> None:
        super().__init__()
        self.norm_first = layer.norm_first
        self.self_attn = CachedSelfAttention(layer.self_attn)
        self.multihead_attn = CachedCrossAttention(layer.multihead_attn, beams)
        self.norm1, self.norm2, self.norm3 = layer.norm1, layer.norm2, layer.norm3
        self.linear1, self.activation, self.linear2 = layer.linear1, layer.activation, layer.linear2

    def forward(
        self, x: Tensor, key: Tensor, value: Tensor, cross_key: Tensor, cross_value: Tensor, mask: Tensor
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """``x [R, E]``, keys, values and mask as in the attentions -> ``[R, E]``, the grown key and value."""
        if self.norm_first:
            attended, key, value = self.self_attn(self.norm1(x), key, value)
            x = x + attended
            x = x + self.multihead_attn(self.norm2(x), cross_key, cross_value, mask)
            return x + self._feed_forward(self.norm3(x)), key, value
        attended, key, value = self.self_attn(x, key, value)
        x = self.norm1(x + attended)
        x = self.norm2(x + self.multihead_attn(x, cross_key, cross_value, mask))
        return self.norm3(x + self._feed_forward(x)), key, value

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.activation(self.linear1(x)))


class CachedDecoder(nn.Module):
    """What ``model.decode`` computes in evaluation mode, one position at a time::

        cross = decoder.cross(memory, src_key_padding_mask)
        past = decoder.empty(rows)
        logits, past = decoder.step(tgt, past, cross, src_key_padding_mask)

    Row ``r`` belongs to sentence ``r // B``. Other hypotheses in the rows: reorder ``past`` with ``index_select``;
    fewer sentences: ``cross`` and the mask too.

    The fused weights are copies made here, in the dtype that the model has now; all else is shared with the model. So
    build a new one after the model's weights changed, and convert the model before rather than this one after:
    ``.double()`` here converts the shared half of the model too.

    Args:
        model: a translation or couplet model with at least one decoder layer; nothing of it is changed.
        beams: whether there may be more rows than sentences. False saves two transposes in each layer; it is the same
            computation for ``R = N``, the only case then.

    Raises:
        ValueError: for a model without decoder layers: nothing there depends on the past.
    """

    if TYPE_CHECKING:  # of CachedLayer; TorchScript would take the annotation for an attribute's
        layers: Any

    def __init__(self, model: SequenceModel, beams: bool = True) -> None:
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
            layers.append(CachedLayer(layer, beams))
        self.layers = nn.ModuleList(layers)
        self.norm = decoder.norm
        self.classification = model.classification
        self.heads = model.my_transformer.nhead
        self.head_dim = model.my_transformer.d_model // self.heads
        self.training = model.training

    @torch.jit.export
    def cross(self, memory: Tensor, src_key_padding_mask: Tensor) -> List[Tensor]:
        """The memory's keys ``[N, H, D, S]`` and values ``[N, H, S, D]``, for each layer one after the other.

        The values of a sentence that is all padding are 0, so that attention to it is.

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
        """The past before the first step: for each layer a key ``[R, H, D, 0]`` and a value ``[R, H, 0, D]``."""
        result: List[Tensor] = []
        for _ in self.layers:
            result.append(self.pe.new_zeros([rows, self.heads, self.head_dim, 0]))
            result.append(self.pe.new_zeros([rows, self.heads, 0, self.head_dim]))
        return result

    @torch.jit.export
    def additive(self, src_key_padding_mask: Tensor) -> Tensor:
        """Bool ``[N, S]``, True = padding -> ``[N, 1, 1, S]`` to add to the scores: -inf for padding, else 0.

        A row that is all padding stays open: a softmax over nothing but -inf is NaN. Its values are 0, see
        :meth:`cross`.
        """
        closed = src_key_padding_mask & ~src_key_padding_mask.all(dim=1, keepdim=True)
        zeros = torch.zeros_like(closed, dtype=self.pe.dtype)
        return zeros.masked_fill(closed, -math.inf).unsqueeze(1).unsqueeze(1)

    @torch.jit.export
    def advance(
        self, tgt: Tensor, past: List[Tensor], cross: List[Tensor], mask: Tensor
    ) -> Tuple[Tensor, List[Tensor]]:
        """:meth:`step` with the ``mask`` of :meth:`additive`, which is the same in every step."""
        position = past[0].size(3)
        if position >= self.pe.size(0):
            raise ValueError(f"position {position} does not fit into {self.pe.size(0)} positions")
        x = self.token_embedding(tgt.squeeze(1)) + self.pe[position]  # [R, E]
        grown: List[Tensor] = []
        for i, layer in enumerate(self.layers):
            x, key, value = layer(x, past[2 * i], past[2 * i + 1], cross[2 * i], cross[2 * i + 1], mask)
            grown.append(key)
            grown.append(value)
        if self.norm is not None:
            x = self.norm(x)
        return self.classification(x), grown

    @torch.jit.export
    def step(
        self, tgt: Tensor, past: List[Tensor], cross: List[Tensor], src_key_padding_mask: Tensor
    ) -> Tuple[Tensor, List[Tensor]]:
        """One position further.

        Args:
            tgt: int64 ``[R, 1]``, the id at position P.
            past: for each layer a key ``[R, H, D, P]`` and a value ``[R, H, P, D]``; P may be 0.
            cross: as from :meth:`cross`.
            src_key_padding_mask: bool ``[N, S]``, True = padding; the one that :meth:`cross` had.

        Returns:
            Logits ``[R, V]`` of the id at position P + 1, and the past, grown to P + 1.

        Raises:
            ValueError: where P is beyond the last position.
        """
        return self.advance(tgt, past, cross, self.additive(src_key_padding_mask))

    def forward(
        self, tgt: Tensor, past: List[Tensor], cross: List[Tensor], src_key_padding_mask: Tensor
    ) -> Tuple[Tensor, List[Tensor]]:
        """As :meth:`step`."""
        return self.step(tgt, past, cross, src_key_padding_mask)


def source_embedding(model: SequenceModel) -> TokenEmbedding:
    """The embedding of ``model``'s source."""
    if isinstance(model, CoupletModel):
        return model.token_embedding
    assert isinstance(model, TranslationModel)
    return model.src_token_embedding


def target_embedding(model: SequenceModel) -> TokenEmbedding:
    """The embedding of ``model``'s target."""
    if isinstance(model, CoupletModel):
        return model.token_embedding
    assert isinstance(model, TranslationModel)
    return model.tgt_token_embedding
