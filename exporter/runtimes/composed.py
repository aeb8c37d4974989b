"""The full graph by way of its parts: decoder(encoder), and N cached steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..cases.case import Array
from ..contracts.contract import Contract
from .runtime import Description, Runtime, described


class Composed:
    """The full graph by way of the encoder and the decoder: the first one's output is the second one's memory."""

    def __init__(self, encoder: Runtime, decoder: Runtime, contract: Contract) -> None:
        self.encoder = encoder
        self.decoder = decoder
        self.contract = contract

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The decoder's outputs."""
        front, back = set(self.encoder.describe().inputs), set(self.decoder.describe().inputs)
        (memory,) = self.encoder.run({name: array for name, array in inputs.items() if name in front}).values()
        given = {name: array for name, array in inputs.items() if name in back} | {"memory": memory}
        # A model on ids has one padding mask for the source, wherever it is read.
        own = {spec.name for spec in self.contract.inputs}
        if "memory_key_padding_mask" in back - own and "src_key_padding_mask" in inputs:
            given["memory_key_padding_mask"] = inputs["src_key_padding_mask"]
        return self.decoder.run(given)

    def describe(self) -> Description:
        """The two runtimes, with the tensors of the full contract."""
        return _composed(self.encoder, "decoder(encoder)", self.contract)


class Stepped:
    """The full graph by way of prefill and step: the target one position at a time, with the past kept.

    After each step the batch is turned round, and the past with it, as a beam search reorders it.
    """

    def __init__(self, prefill: Runtime, step: Runtime, contract: Contract) -> None:
        self.prefill = prefill
        self.step = step
        self.contract = contract

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The logits of every position; padding in the target is not looked at."""
        tgt, padding = inputs["tgt"], inputs["src_key_padding_mask"]
        first = self.prefill.run({"src": inputs["src"], "src_key_padding_mask": padding})
        caches = {name: array for name, array in first.items() if name.startswith("cross_")}
        # The start of prefill is the model's own, the target's may be another: so the past begins empty.
        past = {name: _emptied(name, array) for name, array in first.items() if name.startswith("past_")}
        logits = []
        for position in range(tgt.shape[1]):
            turned = position % 2 == 1
            here = np.s_[::-1] if turned else np.s_[:]
            now = {"tgt": tgt[:, position : position + 1], "src_key_padding_mask": padding, **caches}
            outputs = self.step.run({name: array[here].copy() for name, array in now.items()} | past)
            logits.append(outputs.pop("logits")[here])
            past = {name.replace("present_", "past_", 1): array[::-1].copy() for name, array in outputs.items()}
        return {"logits": np.concatenate(logits, axis=1)}

    def describe(self) -> Description:
        """The two runtimes, with the tensors of the full contract."""
        return _composed(self.step, "N cached steps", self.contract)


def _emptied(name: str, cache: Array) -> Array:
    """A key ``[.., P]`` or value ``[.., P, D]`` without its positions."""
    return cache[..., :0] if "_key_" in name else cache[..., :0, :]


def _composed(runtime: Runtime, how: str, contract: Contract) -> Description:
    inner = runtime.describe()
    return described(contract, f"{inner.runtime}, {how}", inner.version)
