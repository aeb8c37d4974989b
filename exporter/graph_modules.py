"""A model behind one function of tensors with the contract's names: what eager runs, exporters and TorchScript share.

Every mask may be left out here; a contract says which of them a file takes.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class GraphModule(nn.Module):
    """What all have in common: the model, as ``model``, so that its names are the state dict's after ``model.``."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model


class Encode(GraphModule):
    """Ids to memory, batch first."""

    def forward(self, src: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        """As the model's ``encode``."""
        return self.model.encode(src, src_key_padding_mask)


class Decode(GraphModule):
    """Ids and memory to logits, batch first."""

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """As the model's ``decode``."""
        return self.model.decode(tgt, memory, tgt_key_padding_mask, memory_key_padding_mask)


class Translate(GraphModule):
    """Source and target ids to logits, batch first."""

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """As the model's ``forward``."""
        return self.model(src, tgt, src_key_padding_mask, tgt_key_padding_mask)


class Classify(GraphModule):
    """Ids to the scores of classes, batch first."""

    def forward(self, src: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        """As the model's ``forward``."""
        return self.model(src, src_key_padding_mask)


class BareEncode(GraphModule):
    """The encoder of a bare transformer, sequence first."""

    def forward(
        self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """As the ``forward`` of the model's encoder."""
        return self.model.encoder(src, src_mask, src_key_padding_mask)


class BareDecode(GraphModule):
    """The decoder of a bare transformer, sequence first."""

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """As the ``forward`` of the model's decoder."""
        return self.model.decoder(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)


class Bare(GraphModule):
    """A bare transformer, sequence first."""

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """As the model's ``forward``."""
        return self.model(
            src,
            tgt,
            src_mask,
            tgt_mask,
            memory_mask,
            src_key_padding_mask,
            tgt_key_padding_mask,
            memory_key_padding_mask,
        )
