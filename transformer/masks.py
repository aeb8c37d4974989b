"""Masks: which query may attend to which key.

The polarity is that of ``torch.nn.Transformer``. A bool mask is True where attention is **forbidden**
(``attn_mask``) or where a key is **padding** (``key_padding_mask``). A float mask is added to the attention scores.

A query row that may attend nowhere gets zero attention. The softmax of such a row is NaN in PyTorch, and runtimes give
different values for it. So the row is opened before the softmax, and its output is set to zero afterwards; see
:func:`open_mask`.
"""

import math
from typing import Optional, Tuple

import torch
from torch import Tensor


def generate_square_subsequent_mask(sz: int) -> Tensor:
    """The causal mask of the original code: float32 ``[sz, sz]``, 0 on and below the diagonal, -inf above."""
    return torch.full([sz, sz], -math.inf, dtype=torch.float32).triu(1)


def causal_mask(length: int, device: Optional[torch.device] = None) -> Tensor:
    """The causal mask, bool ``[length, length]``: True above the diagonal, so that position i does not see j > i."""
    positions = torch.arange(length, device=device)
    return positions.unsqueeze(0) > positions.unsqueeze(1)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """``mask`` as a float mask in ``dtype``: True becomes -inf, False becomes 0; a float mask keeps its values.

    Raises:
        ValueError: if the mask holds integers: adding 0 or 1 to the scores would hide almost nothing.
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
    """Both masks as one float mask that broadcasts to the scores ``[N, H, T, S]``; None if both are None.

    Args:
        attn_mask: ``[T, S]`` or ``[N*H, T, S]``, bool or float.
        key_padding_mask: ``[N, S]``, bool or float.
        dtype: dtype of the result, which is that of the query.
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
    """Set rows of a float mask that forbid everything to 0, and shift every other row so that its largest value is 0.

    Adding a constant to a row does not change its softmax. Without the shift, a row that holds the most negative finite
    float16 overflows to -inf when the scores are added, and its softmax is NaN.

    Args:
        mask: broadcasts to ``[N, H, T, S]``.
        target_length: T. The mask is expanded to T rows: onnxruntime's ``Attention`` does not broadcast over queries.

    Returns:
        The opened mask, and ``dead [.., .., .., 1]``, which is True for a row that may attend nowhere. The caller must
        set those rows of the attention's *output* to 0.
    """
    dead = (mask == -math.inf).all(dim=-1, keepdim=True)
    opened = mask.masked_fill(dead, 0.0)
    if opened.size(-1) > 0:
        opened = opened - opened.amax(dim=-1, keepdim=True)
    return opened.expand(-1, -1, target_length, -1), dead
