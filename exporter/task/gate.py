"""The gate on the task: how many sentences a file of another precision decodes as the model in float32 does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ...models import Generator, Vocabulary
from ...models.sequence import SequenceModel
from ...models.vocab import by_character
from ..bundle.generation import (
    DEFAULT_BATCH,
    Results,
    Search,
    SearchOptions,
    batches_of,
    hypotheses_of,
    open_search,
    padded,
    search_graph,
)
from ..cases.case import Array
from ..errors import OptionError
from ..formats.quantisation import rule_of
from ..formats.table import FORMATS, Format
from ..graphs.graph import Graph
from ..parity.reference import threads_for
from ..parity.task_report import Layer, Measure, TaskReport
from ..runtimes.onnxruntime import OnnxRuntime
from .data import TaskData, made_task, read_task
from .measures import distance, measures_of
from .sensitivity import fewest, sensitivities

MADE_LENGTH = 40  # most tokens of a result for random ids, which may have no end
# By precision: the share of sentences with the same tokens that data of the user's must reach.
TARGETS = {"int8": 0.9, "int4": 0.8, "auto": 0.99}

Decoded = list[tuple[tuple[int, ...], float]]  # ids and score of each sentence
Progress = Callable[[str], None]


def task_of(
    model: nn.Module,
    graphs: Mapping[str, Graph],
    formats: Sequence[str],
    *,
    data: Path | None,
    vocabulary: Vocabulary | None,
    target: float | None,
) -> Task | None:
    """The task by which files of ``formats`` are judged; None if there is nothing to judge.

    Args:
        model: the model in float32.
        graphs: those that have files.
        formats: names in :data:`~mytx.exporter.formats.table.FORMATS`.
        data: file with the user's data; None makes sentences of random ids.
        vocabulary: of the model, if it has one.
        target: the share of sentences that must get the same tokens, 0 to 1; None is that of :data:`TARGETS` for a
            user's data, and no target for random ids.

    Raises:
        OptionError: if the data do not fit the model, or if there are data or a target, and nothing to judge.
    """
    others = [FORMATS[name] for name in formats if FORMATS[name].made_of]
    if isinstance(model, SequenceModel) and others and search_graph(graphs):
        return Task(model, graphs, others, data, vocabulary, target)
    if data is not None or target is not None:
        raise OptionError(
            "no graph decodes here" if others else "all files are in fp32, and decode as the model does",
            "leave out --task-data and --target-agreement"
            + ("" if others else ", or add --precision int8, int4 or auto"),
        )
    if any(known.mixed for known in others):
        raise OptionError("no graph decodes here, so nothing can choose what stays float32", "use --precision int8")
    return None


class Task:
    """Sentences to decode in float32 and in other precisions. The arguments are those of :func:`task_of`."""

    def __init__(
        self,
        model: SequenceModel,
        graphs: Mapping[str, Graph],
        formats: Sequence[Format],
        data: Path | None,
        vocabulary: Vocabulary | None,
        target: float | None,
    ) -> None:
        self._model, self._graphs, self._formats = model, graphs, formats
        self._vocabulary, self._target, self._given = vocabulary, target, data is not None
        if target is not None and not 0 <= target <= 1:
            raise OptionError(f"the target is {target}", "choose a share from 0 to 1, such as 0.99")
        config = model.config
        self._ids = {"pad": config.pad_id, "bos": config.bos_id, "eos": config.eos_id}
        ids, longest = config.src_vocab_size, config.max_length
        special = list(self._ids.values())
        if data:
            self.data, most = read_task(data, vocabulary, ids=ids, longest=longest), None
        elif any(known.mixed for known in formats):
            raise OptionError(
                "what stays float32 in auto is chosen by your sentences",
                "add --task-data FILE, or use --precision int8",
            )
        else:
            self.data, most = made_task(special, ids=ids, longest=longest), min(MADE_LENGTH, longest)
        self._options = SearchOptions(max_length=most).within(longest, config.tgt_vocab_size)
        self._float32: Decoded = []
        self._layers: dict[str, tuple[Layer, ...]] = {}

    @property
    def searching(self) -> tuple[str, ...]:
        """The graphs that decode."""
        graph = search_graph(self._graphs)
        return ("encoder", "decoder") if graph == "decoder" else (graph,)

    def choose(
        self, known: Format, folder: Path, write: Callable[[frozenset[str]], None], progress: Progress = lambda _: None
    ) -> frozenset[str]:
        """The names of the weights that must stay float32 in files of ``known``, so that the target is reached: as few
        layers as can be, of those with the largest divergence for their size. All of them, where that is not enough.

        Args:
            known: a format that is ``mixed``.
            folder: with the files that decode.
            write: writes those in ``known`` to ``folder``, with these weights in float32.
            progress: told what is being done.
        """
        layers = self._measured(known, progress)
        target = self._target_of(known)

        def kept(count: int) -> frozenset[str]:
            return frozenset(name for layer in layers[:count] for name in layer.weights)

        def holds(count: int) -> bool:
            progress(f"Trying {count} of {len(layers)} layers in float32")
            write(kept(count))
            pairs = zip(self._in_float32(progress), self._with_file(known, folder), strict=True)
            share = sum(one[0] == two[0] for one, two in pairs) / len(self.data.sources)
            return target is None or share >= target

        count = fewest(len(layers), holds)
        self._layers[known.name] = tuple(replace(layer, kept=at < count) for at, layer in enumerate(layers))
        return kept(count)

    def check(self, folder: Path, progress: Progress = lambda _: None) -> tuple[TaskReport, ...]:
        """Compare the files in ``folder`` with the model."""
        return tuple(self._check(known, folder, progress) for known in self._formats)

    def _target_of(self, known: Format) -> float | None:
        return TARGETS.get(known.precision) if self._target is None and self._given else self._target

    def _measured(self, known: Format, progress: Progress) -> tuple[Layer, ...]:
        pairs = [(source, ids) for source, (ids, _) in zip(self.data.sources, self._in_float32(progress), strict=True)]

        def told(done: int, total: int) -> None:
            progress(f"Measuring what each layer costs in {known.rule}: {done} of {total}")

        return sensitivities(self._model, rule_of(known), pairs, told)

    def _in_float32(self, progress: Progress) -> Decoded:
        if not self._float32:
            progress(f"Decoding {self.data.name} in PyTorch")
            self._float32 = decode(self._in_pytorch, self.data, self._options, self._ids["pad"])
        return self._float32

    def _with_file(self, known: Format, folder: Path) -> Decoded:
        contracts = {key: item.contract for key, item in self._graphs.items()}
        search = open_search(
            search_graph(self._graphs), lambda key: OnnxRuntime.open(folder / known.file(key)), contracts, self._ids
        )
        return decode(search, self.data, self._options, self._ids["pad"])

    def _check(self, known: Format, folder: Path, progress: Progress) -> TaskReport:
        float32 = self._in_float32(progress)
        name = known.file(search_graph(self._graphs))
        progress(f"Decoding {self.data.name} with {name}")
        other = self._with_file(known, folder)
        pairs = list(zip(float32, other, strict=True))
        edits = sum(distance(one[0], two[0]) for one, two in pairs)
        tokens = sum(max(len(one[0]), len(two[0])) for one, two in pairs)
        report = TaskReport(
            file=name,
            precision=known.precision,
            data=self.data.name,
            sentences=len(pairs),
            same=sum(one[0] == two[0] for one, two in pairs),
            tokens=1.0 - edits / max(1, tokens),
            score=float(np.mean([abs(one[1] - two[1]) for one, two in pairs])),
            target=self._target_of(known),
            measures=tuple(self._measures(float32, other)),
            layers=self._layers.get(known.name, ()),
        )
        return report if report.passed or report.layers else replace(report, layers=self._measured(known, progress))

    def _measures(self, float32: Decoded, other: Decoded) -> Sequence[Measure]:
        if not self.data.references:
            return ()
        texts = [[self._text(ids) for ids, _ in results] for results in (float32, other)]
        characters = self._vocabulary is not None and by_character(self._vocabulary.target)
        return measures_of(texts[0], texts[1], self.data.references, characters=characters)

    def _text(self, ids: tuple[int, ...]) -> str:
        return self._vocabulary.decode_target(ids) if self._vocabulary else " ".join(map(str, ids))

    def _in_pytorch(self, src: Array, padding: Array, options: SearchOptions) -> Results:
        assert options.max_length is not None
        with torch.inference_mode(), threads_for(self._model):
            found = Generator(self._model).search(
                torch.from_numpy(src), torch.from_numpy(padding), max_length=options.max_length
            )
        tokens, lengths, scores, _ = (tensor.numpy() for tensor in found)
        return tokens, lengths, scores


def decode(search: Search, data: TaskData, options: SearchOptions, pad: int) -> Decoded:
    """The best result of each sentence, in the order of ``data``."""
    found: Decoded = [((), 0.0)] * len(data.sources)
    for batch in batches_of(data.sources, DEFAULT_BATCH):
        results = search(*padded([data.sources[place] for place in batch], pad), options)
        for place, hypotheses in zip(batch, hypotheses_of(results), strict=True):
            found[place] = hypotheses[0]
    return found
