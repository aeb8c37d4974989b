"""Decoding batches of ids with the graphs of a bundle: search options, searches, and their results. Imports no torch.

:mod:`mytx.models.search` describes the search and its options. Letters: ``N`` sentences, ``S`` source length, ``n``
results per sentence, ``L`` length of the longest result.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ..cases.case import Array
from ..contracts.contract import Contract
from ..errors import OptionError
from ..runtimes.runtime import Runtime

HIGHEST_POWER = math.log(np.finfo(np.float32).max)
DEFAULT_LENGTH = 256  # equal to mytx.models.search.DEFAULT_MAX_LENGTH, which cannot be imported without torch
DEFAULT_BATCH = 32

Results = tuple[Array, Array, Array]  # tokens [N, n, L], lengths [N, n], scores [N, n]


@dataclass(frozen=True)
class Hypothesis:
    """One result of a search.

    Attributes:
        ids: target ids without start and end.
        score: log-probability / (length with the end) ** length_penalty; 0 for an empty source, which is not decoded.
        text: the ids as text; None if the bundle has no vocabulary.
    """

    ids: tuple[int, ...]
    score: float
    text: str | None = None


@dataclass(frozen=True)
class Generation:
    """The results for one input.

    Attributes:
        hypotheses: ``num_hypotheses`` results, best first.
    """

    hypotheses: tuple[Hypothesis, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of the best hypothesis."""
        return self.hypotheses[0].ids

    @property
    def score(self) -> float:
        """The score of the best hypothesis."""
        return self.hypotheses[0].score

    @property
    def text(self) -> str | None:
        """The text of the best hypothesis."""
        return self.hypotheses[0].text


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search, as in :class:`mytx.models.Generator`.

    Attributes:
        num_beams: number of beams; 1 is greedy search.
        max_length: the most tokens of a result; None means 256, or the number of positions if that is smaller.
        min_length: the fewest tokens of a result.
        length_penalty: scores are divided by length ** length_penalty.
        num_hypotheses: number of results for each input.
    """

    num_beams: int = 1
    max_length: int | None = None
    min_length: int = 0
    length_penalty: float = 1.0
    num_hypotheses: int = 1

    def within(self, positions: int, vocabulary: int) -> SearchOptions:
        """The options with ``max_length`` filled in, after a check that all are in range.

        Without this check, the graphs would replace a number out of range silently.

        Args:
            positions: number of positions of the model.
            vocabulary: number of target ids.

        Raises:
            OptionError: if a number is out of range.
        """
        for name in ("num_beams", "min_length", "num_hypotheses"):
            whole_number(name, getattr(self, name))
        longest = min(DEFAULT_LENGTH, positions) if self.max_length is None else self.max_length
        whole_number("max_length", longest)
        limits = (
            ("max_length", longest, 1, positions, f"the model has {positions} positions"),
            ("min_length", self.min_length, 0, longest, f"max_length is {longest}"),
            ("num_beams", self.num_beams, 1, max(1, vocabulary // 2), f"the target vocabulary has {vocabulary} ids"),
            ("num_hypotheses", self.num_hypotheses, 1, self.num_beams, f"num_beams is {self.num_beams}"),
        )
        for name, value, low, high, why in limits:
            if not low <= value <= high:
                raise OptionError(f"{name} is {value}, and {why}", f"choose {low} to {high}")
        penalty, most = self.length_penalty, HIGHEST_POWER / math.log(max(2, longest))
        if isinstance(penalty, (str, bytes)) or not hasattr(penalty, "__float__"):
            raise OptionError(f"length_penalty is {penalty!r}", "give a number")
        if not 0.0 <= penalty <= most:
            raise OptionError(
                f"length_penalty is {penalty}, and scores are divided by length ** length_penalty, a float32",
                f"choose 0 to {math.floor(most)}; 0.6 to 1 are usual",
            )
        return replace(self, max_length=longest)


def whole_number(name: str, value: Any) -> int:
    """``value`` as an integer.

    Raises:
        OptionError: if it is not a whole number.
    """
    if isinstance(value, (bool, np.bool_)):
        raise OptionError(f"{name} is {value!r}", "give a whole number")
    try:
        return operator.index(value)
    except TypeError as error:
        raise OptionError(f"{name} is {value!r}", "give a whole number") from error


class Search(Protocol):
    """A function that decodes a batch."""

    def __call__(self, src: Array, padding: Array, options: SearchOptions) -> Results:
        """``src [N, S]`` int64, ``padding [N, S]`` bool (True = padding) -> tokens, lengths, scores."""
        ...


class GraphSearch:
    """The whole search in one graph: ``greedy`` or ``generate``."""

    def __init__(self, graph: Runtime, contract: Contract) -> None:
        self.graph = graph
        self.contract = contract

    def __call__(self, src: Array, padding: Array, options: SearchOptions) -> Results:
        """As :class:`Search`. All options that the graph takes are given, so its defaults are not used."""
        given: dict[str, Array] = {"src": src, "src_key_padding_mask": padding}
        for spec in self.contract.inputs:
            if spec.role == "number":
                given[spec.name] = np.array(getattr(options, spec.name), dtype=spec.dtype)
        found = self.graph.run(given)
        return found["tokens"], found["lengths"], found["scores"]


class EncoderDecoderSearch:
    """Greedy search with ``encoder`` and ``decoder``, for bundles without a graph that searches.

    It is slower, because every step decodes the whole target again. It adds log-probabilities in float64, the graphs
    in float32.
    """

    def __init__(self, encoder: Runtime, decoder: Runtime, ids: dict[str, int]) -> None:
        self.encoder = encoder
        self.decoder = decoder
        self.ids = ids

    def __call__(self, src: Array, padding: Array, options: SearchOptions) -> Results:
        """As :class:`Search`, for one beam and one result for each sentence."""
        assert options.num_beams == 1
        assert options.max_length is not None
        batch, longest, end = len(src), options.max_length, self.ids["eos"]
        memory = self.encoder.run({"src": src, "src_key_padding_mask": padding})["memory"]
        alive = np.arange(batch)
        history = np.full((batch, longest + 1), self.ids["bos"], dtype=np.int64)
        lengths, scores = np.full((batch, 1), longest), np.zeros((batch, 1))
        for step in range(longest):
            tgt = history[alive, : step + 1]
            logits = self.decoder.run(
                {
                    "tgt": tgt,
                    "memory": memory[alive],
                    "tgt_key_padding_mask": np.zeros(tgt.shape, dtype=bool),
                    "memory_key_padding_mask": padding[alive],
                }
            )["logits"][:, -1].astype(np.float64)
            if step < options.min_length:
                logits[:, end] = -np.inf
            best = logits.argmax(axis=1)
            history[alive, step + 1] = best
            top = logits.max(axis=1)
            scores[alive, 0] -= np.log(np.exp(logits - top[:, None]).sum(axis=1))
            ended = best == end
            lengths[alive[ended]] = step
            alive = alive[~ended]
            if not alive.size:
                break
        most = int(lengths.max())
        real = np.arange(most) < lengths
        tokens = np.where(real, history[:, 1 : most + 1], self.ids["pad"])
        # The length with the end token; a result that was cut off has none.
        counted = np.minimum(lengths + 1, longest)
        return tokens[:, None], lengths, scores / counted**options.length_penalty


def search_graph(graphs: Collection[str], num_beams: int = 1) -> str:
    """The graph that decodes fastest with so many beams, as :func:`open_search` takes it; empty if there is none."""
    for name in ("greedy", "generate") if num_beams == 1 else ("generate",):
        if name in graphs:
            return name
    return "decoder" if num_beams == 1 and {"encoder", "decoder"} <= set(graphs) else ""


def open_search(
    name: str, opened: Callable[[str], Runtime], contracts: Mapping[str, Contract], ids: dict[str, int]
) -> Search:
    """The search with the graph ``name``: ``greedy``, ``generate``, or ``decoder`` for encoder and decoder.

    Args:
        name: of the graph.
        opened: opens a graph by its name.
        contracts: of the graphs, by name.
        ids: ``pad``, ``bos`` and ``eos``.
    """
    if name == "decoder":
        return EncoderDecoderSearch(opened("encoder"), opened("decoder"), ids)
    return GraphSearch(opened(name), contracts[name])


def batches_of(sources: Sequence[Sequence[int]], batch_size: int) -> Iterator[list[int]]:
    """Indices of ``sources`` in batches of similar length. The longest come first, so that a lack of memory shows at
    once.
    """
    order = sorted(range(len(sources)), key=lambda place: -len(sources[place]))
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def padded(sources: Sequence[Sequence[int]], pad: int) -> tuple[Array, Array]:
    """Sources that are not empty as ``src [N, S]`` int64, padded on the right, and the padding mask ``[N, S]`` bool."""
    longest = max(map(len, sources))
    src = np.full((len(sources), longest), pad, dtype=np.int64)
    padding = np.ones(src.shape, dtype=bool)
    for row, source in enumerate(sources):
        src[row, : len(source)] = source
        padding[row, : len(source)] = False
    return src, padding


def hypotheses_of(results: Results) -> list[list[tuple[tuple[int, ...], float]]]:
    """For each sentence the ids and the score of each result, best first."""
    tokens, lengths, scores = results
    return [
        [(tuple(ids[:length].tolist()), float(score)) for ids, length, score in zip(*row, strict=True)]
        for row in zip(tokens, lengths, scores, strict=True)
    ]


def listed_inputs(inputs: Sequence[str] | Sequence[Sequence[int]]) -> list[str | Sequence[int]]:
    """``inputs`` as a list, after a check that they are texts or lists of ids.

    Raises:
        OptionError: if they are not, or there are none.
    """
    if isinstance(inputs, str):
        raise OptionError("one text was given", "give a list of texts: [text]")
    items: list[str | Sequence[int]] = list(inputs)
    if not items:
        raise OptionError("no inputs were given", "give at least one text, or the ids of one")
    if any(not hasattr(item, "__len__") and not hasattr(item, "__iter__") for item in items):
        raise OptionError("numbers were given where a list of texts or of lists of ids is expected", "give [ids]")
    return items
