"""Decoding: our graph in onnxruntime beside CTranslate2 with the same weights, and beside Optimum.

    python -m benchmarks.decode [--preset base small] [--precision int8] [--batch 1 16] [--beams 1 4] [--threads 1 2]
        [--json | --markdown]

Engines take turns, so that what else the machine does hits all; times are medians, and a ratio above 1 means that ours
is faster. Without ``--mixed`` nothing ends before ``--steps``. Optimum takes part where it is installed.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # an engine that waits for its turn must not spin

import argparse
import itertools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.decode_engines import (
    Decode,
    Files,
    Ids,
    ct2_engine,
    has_optimum,
    mytx_engine,
    optimum_engine,
    plain_engine,
)
from mytx.exporter.bundle.generation import padded
from mytx.exporter.decode.bench import STREAMED, read_memory
from mytx.exporter.formats.table import FORMATS, PRECISIONS
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.parity.prove import weights_of_file
from mytx.models import Generator, Vocabulary, build_preset, demo_folder, find_vocab, load_model
from mytx.models.sequence import SequenceModel

BATCHES = {1: (1, 16), 4: (1, 8)}  # by beams, where no batch is asked for
NEVER = -1e4  # a bias of the end token: it is not chosen
ENDING = 0.05  # of steps, where sentences are to end at very different ones


def decoded_bytes(model: SequenceModel, precision: str = "fp32") -> int:
    """The weights that a step of one sentence has to read, in bytes: all of its graph's but tables of embeddings and
    positions, of which it reads rows.
    """
    weights = weights_of_file(FORMATS[PRECISIONS[precision]], graphs_of(model)["step"])
    return sum(array.nbytes for name, array in weights.items() if "embedding." not in name)


def take_turns(tasks: Mapping[str, Callable[[], Any]], runs: int) -> tuple[dict[str, float], dict[str, Any]]:
    """The median seconds of each of ``tasks``, and what it gave; the first time does not count."""
    results = {name: task() for name, task in tasks.items()}
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(runs):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}, results


def measure(
    engines: Mapping[str, Decode],
    files: Files,
    sources: Ids,
    beams: int,
    steps: int,
    runs: int,
    threads: int,
    precision: str = "fp32",
) -> dict[str, Any]:
    """A row of the table."""
    tasks: dict[str, Callable[[], Any]] = {
        name: lambda engine=engine: engine(sources, beams, steps) for name, engine in engines.items()
    }
    memory = np.ones(STREAMED // 4, np.float32)
    tasks["read"] = lambda: read_memory(memory, threads)
    seconds, results = take_turns(tasks, runs)
    ours = results["mytx"]
    longest = max(map(len, ours))
    bandwidth = memory.nbytes / seconds.pop("read")
    row: dict[str, Any] = {
        "threads": threads,
        "batch": len(sources),
        "beams": beams,
        "steps": longest,
        "shortest": min(map(len, ours)),
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
    }
    for name, value in seconds.items():
        if name != "mytx":
            row[f"ratio_to_{name}"] = round(value / seconds["mytx"], 3)
    for name in ("ctranslate2", "ctranslate2_int8"):
        if name in results:
            row[f"same_as_{name}"] = sum(a == b for a, b in zip(ours, results[name], strict=True))
    if len(sources) * beams == 1:
        row["bandwidth_gb_s"] = round(bandwidth / 1e9, 2)
        row["share_of_bandwidth"] = round(
            decoded_bytes(files.model, precision) * longest / bandwidth / seconds["mytx"], 3
        )
    return row


def random_sources(model: SequenceModel, batch: int, length: int, seed: int = 0) -> Ids:
    """Random ids, none of them special."""
    config = model.config
    return np.random.default_rng(seed).integers(3, config.src_vocab_size, (batch, length)).tolist()


def end_at_random(model: SequenceModel, sources: Ids, steps: int) -> None:
    """Bias the end token of an untrained model so that sentences end at very different steps."""
    config = model.config
    bias, weight = model.classification.bias.data, model.classification.weight.data
    bias[config.eos_id] = NEVER
    src, padding = map(torch.from_numpy, padded(sources, config.pad_id))
    tokens, _, _ = Generator(model)(src, padding, max_length=steps)
    weight[config.eos_id] *= 4  # far apart from step to step
    bias[config.eos_id] = 0
    start = torch.full((len(sources), 1), config.bos_id)
    with torch.no_grad():
        logits = model(src, torch.cat([start, tokens[:, 0, :-1]], dim=1), padding).flatten(0, 1)
    end = logits[:, config.eos_id].clone()
    logits[:, config.eos_id] = -math.inf
    bias[config.eos_id] = (logits.max(dim=1).values - end).quantile(ENDING)


def demo_sources(batch: int) -> tuple[SequenceModel, Ids]:
    """The demo model and words that it was not trained on."""
    model = load_model(demo_folder()).eval()
    assert isinstance(model, SequenceModel)
    path = find_vocab(demo_folder())
    assert path is not None
    vocabulary = Vocabulary.read(path)
    words = [line.split("\t")[0] for line in (demo_folder() / "heldout.txt").read_text("utf-8").splitlines()]
    return model, [vocabulary.encode_source(word) for word in words[:batch]]


def rows_of(name: str, model: SequenceModel, sources: Mapping[int, list[Ids]], options: Any) -> list[dict[str, Any]]:
    """All rows of a model. ``sources`` are the batches by beams."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        optimum = has_optimum() and not options.mixed and not options.uncached
        files = Files.write(model, Path(folder), options.precision, max(sources) > 1, options.uncached, optimum)
        for precision, threads in itertools.product(options.precision, options.threads):
            for beams, batches in sources.items():
                engines: dict[str, Decode] = {"mytx": mytx_engine(files, precision, threads, beams > 1)}
                if options.uncached:
                    engines["uncached"] = plain_engine(files, threads)
                else:
                    engines["ctranslate2"] = ct2_engine(files, threads, "float32")
                    engines["ctranslate2_int8"] = ct2_engine(files, threads, "int8")
                if optimum:
                    engines["optimum"] = optimum_engine(files, threads)
                for batch in batches:
                    row = measure(engines, files, batch, beams, options.steps, options.runs, threads, precision)
                    rows.append({"model": name, "precision": precision, **row})
                    if not options.json and not options.markdown:
                        print(json.dumps(rows[-1]), flush=True)
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """The rows as a table."""
    others = [key for key in dict.fromkeys(key for row in rows for key in row) if key.startswith("ratio_to_")]
    titles = [
        "model",
        "precision",
        "threads",
        "batch",
        "beams",
        "tokens/s",
        *(key.replace("_", " ") for key in others),
    ]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for row in rows:
        speed = row["batch"] * row["steps"] / row["seconds"]["mytx"]
        cells = [row["model"], row["precision"], row["threads"], row["batch"], row["beams"], f"{speed:.0f}"]
        cells += [f"{row[key]:.2f}" if key in row else "" for key in others]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The least ratio and the geometric mean, for each engine."""
    result = {}
    for key in {key for row in rows for key in row if key.startswith("ratio_to_")}:
        values = [row[key] for row in rows if key in row]
        result[f"least_{key}"] = min(values)
        result[f"mean_{key}"] = round(statistics.geometric_mean(values), 3)
    return dict(sorted(result.items()))


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", nargs="+", default=["small", "base"], help="sizes of untrained models")
    parser.add_argument("--batch", nargs="+", type=int, help="default: 1 and 16, with beams 1 and 8")
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--precision", nargs="+", choices=list(PRECISIONS), default=["fp32"], help="of our files")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--length", type=int, default=20, help="of a source")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument(
        "--mixed", action="store_true", help="sentences that end at different steps, and the demo's words"
    )
    parser.add_argument(
        "--uncached", action="store_true", help="greedy, beside running the decoder on all of it each step"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--markdown", action="store_true", help="a table")
    options = parser.parse_args()
    if options.uncached:
        options.beams = [1]
    rows = []
    for preset in options.preset:
        torch.manual_seed(0)
        model = build_preset(preset).eval()
        beams = {
            number: options.batch or ((64,) if options.mixed else BATCHES.get(number, (1,))) for number in options.beams
        }
        sources = {
            number: [random_sources(model, batch, options.length) for batch in batches]
            for number, batches in beams.items()
        }
        if options.mixed:
            end_at_random(model, random_sources(model, 32, options.length, seed=1), options.steps)
        else:
            model.classification.bias.data[model.config.eos_id] = NEVER
        rows += rows_of(preset, model, sources, options)
    if options.mixed:
        model, words = demo_sources(64)
        rows += rows_of("demo", model, {number: [words] for number in options.beams}, options)
    if options.json:
        print(json.dumps({"rows": rows, "summary": summary(rows)}))
    elif options.markdown:
        print(markdown(rows))
    else:
        print(json.dumps(summary(rows)))


if __name__ == "__main__":
    main()
