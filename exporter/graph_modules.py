"""A model behind one function of tensors with the contract's names: what eager runs, exporters and TorchScript share.

Every mask may be left out here; a contract says which of them a file takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..models import CachedDecoder, Generator
from ..models.search import SourceEncoder

Made = TypeVar("Made", bound=nn.Module)
CACHES = ("cross", "past")  # what a list of tensors goes in by: cross_key_0, cross_value_0, cross_key_1 and so on


def arguments(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs by name as a module's arguments: those of keys and values together as lists, in the order given."""
    given: dict[str, Any] = {}
    for name, value in inputs.items():
        cache = name.partition("_")[0]
        if cache in CACHES:
            given.setdefault(cache, []).append(value)
        else:
            given[name] = value
    return given


class GraphModule(nn.Module):
    """What all have in common: the model, as ``model``, so that its names are the state dict's after ``model.``."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self._fused: dict[type[nn.Module], nn.Module] | None = None  # a dict: its modules are no parts of this one

    def arguments(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs by name as what ``forward`` takes."""
        return arguments(inputs)

    @contextmanager
    def fused_once(self) -> Iterator[None]:
        """Within the block, where the weights stay as they are, they are fused once and not in each run."""
        before, self._fused = self._fused, {}
        try:
            yield
        finally:
            self._fused = before

    def with_fused(self, kind: type[Made]) -> Made:
        """A module of ``kind`` that fuses the model's weights."""
        if self._fused is None:
            return kind(self.model)
        if kind not in self._fused:
            self._fused[kind] = kind(self.model)
        return self._fused[kind]  # type: ignore[return-value]


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


# The weights of what follows are fused when it runs, so that a file holds them as the model does, and the reference
# and the noise are those of the model's weights as they are at that time.


class Cross(GraphModule):
    """Memory to its keys and values."""

    def forward(self, memory: Tensor, src_key_padding_mask: Tensor) -> list[Tensor]:
        """As :meth:`mytx.models.CachedDecoder.cross`."""
        return self.with_fused(CachedDecoder).cross(memory, src_key_padding_mask)


class Step(GraphModule):
    """One cached step, with a dimension for the hypotheses of a sentence: no dimension is a product of two."""

    def forward(
        self, tgt: Tensor, src_key_padding_mask: Tensor, cross: list[Tensor], past: list[Tensor]
    ) -> list[Tensor]:
        """``tgt [N, B]``, ``past [N, B, H, ., .]`` -> logits ``[N, B, V]`` and the grown past."""
        logits, grown = self.with_fused(CachedDecoder).step(tgt, past, cross, src_key_padding_mask)
        return [logits.view(cross[0].size(0), -1, logits.size(1)), *grown]


class Prefill(GraphModule):
    """From the source to all that the second step needs."""

    def forward(self, src: Tensor, src_key_padding_mask: Tensor) -> list[Tensor]:
        """``src [N, S]`` -> logits ``[N, 1, V]``, keys and values of the memory, and the past of the start id."""
        decoder = self.with_fused(CachedDecoder)
        cross = decoder.cross(SourceEncoder(self.model)(src, src_key_padding_mask), src_key_padding_mask)
        start = torch.full([src.size(0), 1], self.model.config.bos_id)
        logits, past = decoder.step(start, decoder.empty(src.size(0)), cross, src_key_padding_mask)
        return [logits.unsqueeze(1), *cross, *(cache.unsqueeze(1) for cache in past)]


class Search(GraphModule):
    """Ids to ids; without ``num_beams`` by greedy search. Numbers that are out of range are brought into it."""

    def forward(
        self,
        src: Tensor,
        src_key_padding_mask: Tensor,
        max_length: Tensor,
        min_length: Tensor,
        num_beams: Tensor | None = None,
        length_penalty: Tensor | None = None,
        num_hypotheses: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As :class:`mytx.models.Generator`."""
        return self.search(
            src, src_key_padding_mask, max_length, min_length, num_beams, length_penalty, num_hypotheses
        )[:3]

    def search(
        self,
        src: Tensor,
        src_key_padding_mask: Tensor,
        max_length: Tensor,
        min_length: Tensor,
        num_beams: Tensor | None = None,
        length_penalty: Tensor | None = None,
        num_hypotheses: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """:meth:`forward` and the margins, as :meth:`mytx.models.Generator.search`."""
        generator = self.with_fused(Generator)
        longest = _within(max_length, 1, generator.positions)
        beams = 1 if num_beams is None else _within(num_beams, 1, generator.tgt_vocab_size // 2)
        return generator.search(
            src,
            src_key_padding_mask,
            max_length=longest,
            min_length=_within(min_length, 0, longest),
            num_beams=beams,
            length_penalty=1.0 if length_penalty is None else max(0.0, float(length_penalty)),
            num_hypotheses=1 if num_hypotheses is None else _within(num_hypotheses, 1, beams),
        )


def _within(number: Tensor, lowest: int, highest: int) -> int:
    return max(lowest, min(int(number), highest))
