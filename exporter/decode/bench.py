"""Benchmark of a bundle's ways to decode: PyTorch without and with a cache, the step graph, the whole search.

All decode the same sources to the same number of tokens: ``min_length`` equals ``max_length``, so no sentence ends
early. They take turns, so that other load on the machine slows all of them. Medians are reported.
"""

from __future__ import annotations

import math
import os
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from ..bundle.generation import Search, SearchOptions, padded
from ..bundle.open import Bundle
from ..cases.case import Array
from ..contracts.contract import Contract
from ..errors import OptionError
from ..formats.onnx.storage import read_model
from ..formats.table import FORMATS
from ..runtimes.onnxruntime import OnnxRuntime, check_threads

MOST_SENTENCES = 4096  # in a batch: more would tell nothing new and fill the memory
STREAMED = 1 << 28  # bytes read to measure the memory; larger than the caches of most processors
SEED = 0

Decode = Callable[[], Array]  # tokens [N, steps]


@dataclass(frozen=True)
class BenchRow:
    """The measurement of one way to decode.

    Attributes:
        name: name to print.
        beams: number of beams.
        seconds: median time of a round, in which all tokens are decoded.
        tokens_per_second: decoded tokens of all sentences; with beams, only those of the best results.
        share: reached share of the speed that the memory allows; known only for one sentence and greedy search.
        same_ids: share of tokens that equal those of the first way with the same number of beams, from 0 to 1.
    """

    name: str
    beams: int
    seconds: float
    tokens_per_second: float
    share: float | None
    same_ids: float


@dataclass(frozen=True)
class BenchResult:
    """The result of :func:`bench`.

    Attributes:
        bundle: folder of the bundle.
        batch, length, steps, threads, rounds: the arguments of :func:`bench`.
        step_bytes: bytes of decoder weights that each step reads; None if the bundle has no step graph.
        bandwidth: sequential read speed of this machine's memory in bytes per second, in the best round.
        rows: the ways to decode.
        notes: what is missing, and why.
    """

    bundle: Path
    batch: int
    length: int
    steps: int
    threads: int
    rounds: int
    step_bytes: int | None
    bandwidth: float
    rows: tuple[BenchRow, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "bundle": str(self.bundle)}


def bench(
    bundle: Bundle,
    *,
    batch: int = 1,
    length: int = 20,
    steps: int = 40,
    beams: int = 1,
    threads: int = 0,
    rounds: int = 5,
    progress: Callable[[str], None] = lambda message: None,
) -> BenchResult:
    """Measure all ways to decode with ``bundle``.

    Args:
        bundle: an open bundle, with the same number of ``threads``.
        batch: number of sentences in the batch.
        length: length of each source, in tokens; the ids are random.
        steps: number of tokens to decode for each sentence.
        beams: number of beams; more than 1 also measures beam search.
        threads: threads of PyTorch and of the memory measurement; 0 means all cores.
        rounds: number of measurements of each way. One more round before them is not counted.
        progress: called with the name of each stage.

    Raises:
        OptionError: if the sizes do not fit the model.
        BundleError: if the bundle cannot decode, or its files were changed.
    """
    for name, value in (("batch", batch), ("length", length), ("rounds", rounds)):
        if value < 1:
            raise OptionError(f"{name} is {value}", "choose 1 or more")
    if batch > MOST_SENTENCES:
        raise OptionError(f"batch is {batch}", f"choose 1 to {MOST_SENTENCES}")
    check_threads(threads)
    options = bundle.check_options(SearchOptions(beams, steps, steps))
    src, padding = _sources(bundle, batch, length)
    ways, notes = _ways(bundle, src, padding, options, threads, progress)
    ways = dict(sorted(ways.items(), key=lambda item: item[0][1]))  # greedy first
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in ways}
    found: dict[tuple[str, int], Array] = {}
    bandwidth = 0.0
    memory = np.ones(STREAMED // 4, np.float32)
    for turn in range(rounds + 1):
        for (name, width), decode in ways.items():
            progress(f"Round {turn} of {rounds}: {name}")
            begun = time.perf_counter()
            found[name, width] = decode()
            seconds[name, width].append(time.perf_counter() - begun)
        begun = time.perf_counter()
        read_memory(memory, threads or os.cpu_count() or 1)
        bandwidth = max(bandwidth, memory.nbytes / (time.perf_counter() - begun))
    step_bytes = _step_bytes(bundle)
    first = {key[1]: key for key in reversed(ways)}
    rows = []
    for (name, width), times in seconds.items():
        median = statistics.median(times[1:])
        rate = batch * steps / median
        share = rate * step_bytes / bandwidth if step_bytes and batch == 1 and width == 1 else None
        same = float((found[name, width] == found[first[width]]).mean())
        rows.append(BenchRow(name, width, median, rate, share, same))
    if any(row.share is not None and row.share > 1 for row in rows):
        notes.append("a share above 100 %: the weights stay in the processor's cache, which is faster than the memory")
    return BenchResult(
        bundle.folder, batch, length, steps, threads, rounds, step_bytes, bandwidth, tuple(rows), tuple(notes)
    )


def _sources(bundle: Bundle, batch: int, length: int) -> tuple[Array, Array]:
    """Random ids from a fixed seed, and their padding mask."""
    config = bundle.config
    if length > config["max_length"]:
        raise OptionError(f"length is {length}, the model has {config['max_length']} positions", "choose a smaller one")
    rng = np.random.default_rng(SEED)
    return padded(rng.integers(0, config["src_vocab_size"], (batch, length)).tolist(), config["pad_id"])


def _ways(
    bundle: Bundle,
    src: Array,
    padding: Array,
    options: SearchOptions,
    threads: int,
    progress: Callable[[str], None],
) -> tuple[dict[tuple[str, int], Decode], list[str]]:
    """The ways to decode on this machine, by name and number of beams, and notes on those that are missing."""
    graphs, notes, file = bundle.graphs, [], FORMATS[bundle.format].file
    ways: dict[tuple[str, int], Decode] = {}
    if not bundle.manifest.of_format("onnx"):
        notes.append("the bundle has no files in fp32 to rebuild the model from: the rows of PyTorch are left out")
    elif find_spec("torch"):
        from .bench_torch import torch_ways

        progress("Rebuilding the model in PyTorch")
        ways |= torch_ways(bundle, src, padding, options, threads)
    else:
        notes.append("without PyTorch here, its rows are left out")
    assert options.max_length is not None
    if {"prefill", "step"} <= set(graphs):
        loop = StepLoop(bundle.graph("prefill"), bundle.graph("step"), graphs["step"].contract)
        ways[f"{file('step')} in a loop", 1] = partial(loop.decode, src, padding, options.max_length)
    greedy = replace(options, num_beams=1)
    searches = [("greedy", greedy), ("generate", greedy), ("generate", options)]
    for name, wanted in searches:
        if name in graphs:
            ways[file(name), wanted.num_beams] = partial(_best_of, bundle.search(name), src, padding, wanted)
    for name in ("prefill", "step", "greedy", "generate"):
        if name not in graphs:
            notes.append(f"the bundle has no {file(name)}: export it with --component {name}")
    return ways, notes


def _best_of(search: Search, src: Array, padding: Array, options: SearchOptions) -> Array:
    tokens, _, _ = search(src, padding, options)
    return tokens[:, 0]


class StepLoop:
    """Greedy search with ``prefill`` and ``step`` in a Python loop. The KV cache stays in the runtime's memory."""

    def __init__(self, prefill: OnnxRuntime, step: OnnxRuntime, contract: Contract) -> None:
        self.prefill = prefill
        self.step = step
        self.end = contract.ids["eos"]
        self.results = [spec.name for spec in contract.outputs]

    def decode(self, src: Array, padding: Array, steps: int) -> Array:
        """``src [N, S]``, ``padding [N, S]`` -> tokens ``[N, steps]``; the end token is never chosen."""
        session, value = self.step.session, self.step.value
        mask = value(padding)
        names = [output.name for output in self.prefill.session.get_outputs()]
        first = self.prefill.session.run_with_ort_values(names, {"src": value(src), "src_key_padding_mask": mask})
        caches = dict(zip(names, first, strict=True))
        logits = caches.pop("logits").numpy()
        tokens = np.empty((len(src), steps), dtype=np.int64)
        for position in range(steps):
            logits[:, :, self.end] = -np.inf
            tokens[:, position] = logits[:, 0].argmax(axis=1)
            if position == steps - 1:
                break
            given = {"tgt": value(tokens[:, position : position + 1].copy()), "src_key_padding_mask": mask, **caches}
            outputs = dict(zip(self.results, session.run_with_ort_values(self.results, given), strict=True))
            logits = outputs.pop("logits").numpy()
            caches |= {name.replace("present_", "past_", 1): kept for name, kept in outputs.items()}
        return tokens


def read_memory(memory: Array, threads: int) -> None:
    """Read ``memory`` once, a part in each thread. The read speed of the memory limits every step of a decode."""
    workers = [threading.Thread(target=part.max) for part in np.array_split(memory, threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _step_bytes(bundle: Bundle) -> int | None:
    """Bytes of the weights that every step reads, or None without a step graph.

    These are all weights of the step graph except the tables of embeddings and positions: a step reads only rows of
    them.
    """
    graphs = bundle.graphs
    if "step" not in graphs:
        return None
    graph, tensors = read_model(bundle.folder / graphs["step"].file)
    inputs = ((node.op_type, place, name) for node in graph.node for place, name in enumerate(node.input))
    read = {name for kind, place, name in inputs if (kind, place) != ("Gather", 0)}
    return sum(
        math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        for tensor in tensors
        if tensor.name in read
    )
