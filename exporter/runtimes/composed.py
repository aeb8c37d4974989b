"""The full graph run by its parts: decoder(encoder), and N cached steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..cases.case import Array
from ..contracts.contract import Contract
from .runtime import Description, Runtime, described


class Composed:
    """The full graph, run by the encoder and then by the decoder on the encoder's output."""

    def __init__(self, encoder: Runtime, decoder: Runtime, contract: Contract) -> None:
        self.encoder = encoder
        self.decoder = decoder
        self.contract = contract

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of the decoder."""
        front, back = set(self.encoder.describe().inputs), set(self.decoder.describe().inputs)
        (memory,) = self.encoder.run({name: array for name, array in inputs.items() if name in front}).values()
        given = {name: array for name, array in inputs.items() if name in back} | {"memory": memory}
        # ``full`` of a model on ids has one padding mask for the source; the decoder has it as the memory's mask.
        own = {spec.name for spec in self.contract.inputs}
        if "memory_key_padding_mask" in back - own and "src_key_padding_mask" in inputs:
            given["memory_key_padding_mask"] = inputs["src_key_padding_mask"]
        return self.decoder.run(given)

    def describe(self) -> Description:
        """The encoder's runtime, with the tensors of the full contract."""
        return _composed(self.encoder, "decoder(encoder)", self.contract)


class Stepped:
    """The full graph, run by prefill and then by a cached step for each position of the target.

    After each step the order of the batch and its past is reversed, because a beam search also reorders them.
    """

    def __init__(self, prefill: Runtime, step: Runtime, contract: Contract) -> None:
        self.prefill = prefill
        self.step = step
        self.contract = contract

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The logits of every position. Padding in the target is ignored."""
        tgt, padding = inputs["tgt"], inputs["src_key_padding_mask"]
        first = self.prefill.run({"src": inputs["src"], "src_key_padding_mask": padding})
        caches = {name: array for name, array in first.items() if name.startswith("cross_")}
        # Prefill starts with the model's start id, the target may start with another: so begin with an empty past.
        past = {name: _emptied(name, array) for name, array in first.items() if name.startswith("past_")}
        logits = []
        for position in range(tgt.shape[1]):
            reversed_batch = position % 2 == 1
            order = np.s_[::-1] if reversed_batch else np.s_[:]
            now = {"tgt": tgt[:, position : position + 1], "src_key_padding_mask": padding, **caches}
            outputs = self.step.run({name: array[order].copy() for name, array in now.items()} | past)
            logits.append(outputs.pop("logits")[order])
            past = {name.replace("present_", "past_", 1): array[::-1].copy() for name, array in outputs.items()}
        return {"logits": np.concatenate(logits, axis=1)}

    def describe(self) -> Description:
        """The step's runtime, with the tensors of the full contract."""
        return _composed(self.step, "N cached steps", self.contract)


def _emptied(name: str, cache: Array) -> Array:
    """A cache of keys ``[.., P]`` or values ``[.., P, D]`` with 0 positions."""
    return cache[..., :0] if "_key_" in name else cache[..., :0, :]


def _composed(runtime: Runtime, how: str, contract: Contract) -> Description:
    inner = runtime.describe()
    return described(contract, f"{inner.runtime}, {how}", inner.version)
