"""The module that computes each graph: its ``forward`` takes tensors with the names in the contract.

Eager runs and all exporters use these modules. Every mask is optional here; a contract lists those that a file takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from ...models import CachedDecoder, Generator
from ...models.search import SourceEncoder

Made = TypeVar("Made", bound=nn.Module)
CACHES = ("cross", "past")  # arguments that are lists of tensors: cross_key_0, cross_value_0, cross_key_1 and so on


def arguments(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """From inputs by name to a module's arguments: keys and values of a cache become one list, in the given order."""
    given: dict[str, Any] = {}
    for name, value in inputs.items():
        cache = name.partition("_")[0]
        if cache in CACHES:
            given.setdefault(cache, []).append(value)
        else:
            given[name] = value
    return given


class GraphModule(nn.Module):
    """The base class. It holds the model as ``model``: the name of a weight is ``model.`` and its state-dict name.

    Attributes:
        positional: whether ``torch.export`` makes a program that takes inputs by position, not by name.
    """

    positional: ClassVar[bool] = False

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self._fused: dict[type[nn.Module], nn.Module] | None = None  # a dict: its modules are no parts of this one

    def arguments(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """From inputs by name to the arguments of ``forward``."""
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
    """From source ids to the memory, batch first."""

    def forward(self, src: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        """As the model's ``encode``."""
        return self.model.encode(src, src_key_padding_mask)


class Decode(GraphModule):
    """From target ids and the memory to logits, batch first."""

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
    """From source and target ids to logits, batch first."""

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
    """From ids to the scores of the classes, batch first."""

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


# The modules below fuse weights each time they run, not once when they are made. So files contain the model's own
# weights, and float64 references and noise are computed with the weights that the model has at that time.


class Cross(GraphModule):
    """From the memory to its keys and values in each layer."""

    def forward(self, memory: Tensor, src_key_padding_mask: Tensor) -> list[Tensor]:
        """As :meth:`mytx.models.CachedDecoder.cross`."""
        return self.with_fused(CachedDecoder).cross(memory, src_key_padding_mask)


class Step(GraphModule):
    """One cached step. Sentences and their hypotheses are two dimensions, never one of ``N * B``."""

    def forward(
        self, tgt: Tensor, src_key_padding_mask: Tensor, cross: list[Tensor], past: list[Tensor]
    ) -> list[Tensor]:
        """``tgt [N, B]``, ``past [N, B, H, ., .]`` -> logits ``[N, B, V]`` and the past with the new position."""
        logits, grown = self.with_fused(CachedDecoder).step(tgt, past, cross, src_key_padding_mask)
        return [logits.view(cross[0].size(0), -1, logits.size(1)), *grown]


class Prefill(GraphModule):
    """From the source to the result of the first step, with all caches that the next step needs."""

    def forward(self, src: Tensor, src_key_padding_mask: Tensor) -> list[Tensor]:
        """``src [N, S]`` -> logits ``[N, 1, V]``, keys and values of the memory, and the past of the start id."""
        decoder = self.with_fused(CachedDecoder)
        cross = decoder.cross(SourceEncoder(self.model)(src, src_key_padding_mask), src_key_padding_mask)
        start = torch.full([src.size(0), 1], self.model.config.bos_id)
        logits, past = decoder.step(start, decoder.empty(src.size(0)), cross, src_key_padding_mask)
        return [logits.unsqueeze(1), *cross, *(cache.unsqueeze(1) for cache in past)]


class Search(GraphModule):
    """A whole search, from source ids to target ids; greedy without ``num_beams``. Numbers out of range are replaced
    by the nearest ones in range.
    """

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
