"""Masks: what may attend to what.

Two kinds, with the polarity of ``torch.nn.Transformer``. A bool mask is True where attention is **forbidden**
(an ``attn_mask``) or where a key is **padding** (a ``key_padding_mask``). A float mask is added to the scores.

A query row that may attend nowhere gets zero attention. Softmax over such a row is NaN, and runtimes disagree about
it, so the row is opened before the softmax and its result is set to zero after it; see :func:`open_mask`.
"""

import math
from typing import Optional, Tuple

import torch
from torch import Tensor


def generate_square_subsequent_mask(sz: int) -> Tensor:
    """The causal mask as the seed builds it: float32 ``[sz, sz]``, 0 on and below the diagonal, -inf above."""
    return torch.full([sz, sz], -math.inf, dtype=torch.float32).triu(1)


def causal_mask(length: int, device: Optional[torch.device] = None) -> Tensor:
    """The causal mask as bool ``[length, length]``: True above the diagonal, where position i may not see j > i."""
    positions = torch.arange(length, device=device)
    return positions.unsqueeze(0) > positions.unsqueeze(1)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """``mask`` as a float mask in ``dtype``: True becomes -inf, False 0; a float mask keeps its values.

    Raises:
        ValueError: for an integer mask: added as it is, it would hide next to nothing.
    """
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)
    if not mask.is_floating_point():
        raise ValueError(f"a mask must be bool (True = may not attend) or float (added), got {mask.dtype}")
    return mask.to(dtype)


def merge_masks(
    attn_mask: Optional[Tensor],
    key_padding_mask: Optional[Tensor],
    dtype: torch.dtype,
    batch: int,
    heads: int,
) -> Optional[Tensor]:
    """Both masks as one float mask that broadcasts to the scores ``[N, H, T, S]``; None when there is neither.

    Args:
        attn_mask: ``[T, S]`` or ``[N*H, T, S]``, bool or float.
        key_padding_mask: ``[N, S]``, bool or float.
        dtype: of the result; the query's.
        batch: N.
        heads: H.
    """
    merged: Optional[Tensor] = None
    if attn_mask is not None:
        merged = additive(attn_mask, dtype)
        if merged.dim() == 3:
            merged = merged.view(batch, heads, merged.size(1), merged.size(2))
        else:
            merged = merged.unsqueeze(0).unsqueeze(0)
    if key_padding_mask is not None:
        padding = additive(key_padding_mask, dtype).unsqueeze(1).unsqueeze(1)  # [N, 1, 1, S]
        merged = padding if merged is None else merged + padding
    return merged


def open_mask(mask: Tensor, target_length: int) -> Tuple[Tensor, Tensor]:
    """Open the rows of a float mask that forbid everything, and bring the largest value of the others to 0.

    Softmax is the same for a row plus a constant. Without the shift, a row of the most negative finite float16 plus
    its scores is a row of -inf, and NaN after the softmax.

    Args:
        mask: broadcasts to ``[N, H, T, S]``.
        target_length: T. The mask is expanded over it: onnxruntime's ``Attention`` refuses one that broadcasts there.

    Returns:
        The mask with its dead rows set to 0, and ``dead [.., .., .. , 1]``, True for a row that may attend nowhere.
        The caller sets those rows of the attention's *output* to 0.
    """
    dead = (mask == -math.inf).all(dim=-1, keepdim=True)
    opened = mask.masked_fill(dead, 0.0)
    if opened.size(-1) > 0:
        opened = opened - opened.amax(dim=-1, keepdim=True)
    return opened.expand(-1, -1, target_length, -1), dead
