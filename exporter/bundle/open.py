"""Opening a bundle, running its graphs in onnxruntime, and decoding text or ids with it. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ...models.vocab import Vocabulary
from ..contracts.contract import CUSTOM_KIND, GRAPHS
from ..errors import BundleError, OptionError, first_line
from ..runtimes.onnxruntime import OnnxRuntime, RuntimeOptions
from .generation import (
    DEFAULT_BATCH,
    Generation,
    Hypothesis,
    Search,
    SearchOptions,
    batches_of,
    hypotheses_of,
    listed_inputs,
    open_search,
    padded,
    search_graph,
    whole_number,
)
from .integrity import check_files
from .manifest import REBUILD, GraphEntry, Manifest, onnx_format, read_manifest
from .staging import recover
from .typed import fits

NUMBERS = ("max_length", "src_vocab_size", "tgt_vocab_size", "pad_id", "bos_id", "eos_id")  # in config.json


def open_bundle(
    path: str | Path,
    *,
    precision: str | None = None,
    allow_failed: bool = False,
    check: bool = True,
    options: RuntimeOptions | None = None,
) -> Bundle:
    """Open the bundle at ``path``.

    Args:
        path: the folder.
        precision: of the ONNX files to run: ``fp32``, ``int8``, ``int4`` or ``auto``; None means the first of these
            that it has.
        allow_failed: also open a bundle whose parity failed.
        check: check all files with the manifest first.
        options: how to run its graphs. An execution provider that this machine lacks raises ``OptionError`` when a
            graph is first used, not here.

    Raises:
        BundleError: if there is no bundle, or if it is damaged, or if its parity failed.
        OptionError: if the bundle has no files of this precision.
    """
    folder = Path(path)
    recover(folder)
    manifest = read_manifest(folder)
    if manifest.parity.get("passed") is False and not allow_failed:
        raise BundleError(f"parity of {folder} failed when it was made", "see its parity.json, and do not deploy it")
    if check:
        check_files(folder, manifest)
    return Bundle(folder, manifest, options or RuntimeOptions(), onnx_format(folder, manifest, precision))


class Bundle:
    """An open bundle. Graphs are loaded when they are first used.

    Attributes:
        folder: the bundle's folder.
        manifest: the content of its ``manifest.json``.
        format: of the ONNX files that it runs.
    """

    def __init__(self, folder: Path, manifest: Manifest, options: RuntimeOptions, file_format: str = "onnx") -> None:
        self.folder = folder
        self.manifest = manifest
        self.format = file_format
        self._options = options
        self._open: dict[str, OnnxRuntime] = {}

    def graph(self, name: str) -> OnnxRuntime:
        """The graph ``name``, open in onnxruntime.

        Raises:
            BundleError: if the bundle does not have it, or onnxruntime cannot load it.
            OptionError: for execution providers that onnxruntime does not have, or cannot use here.
        """
        if name not in self._open:
            path = self.folder / self.entry(name).file
            try:
                self._open[name] = OnnxRuntime.open(path, self._options)
            except OptionError:
                raise
            except Exception as error:  # onnxruntime raises its own classes
                raise BundleError(f"onnxruntime cannot load {path}: {first_line(error)}", REBUILD) from error
        return self._open[name]

    @cached_property
    def graphs(self) -> dict[str, GraphEntry]:
        """The manifest's entries of the ONNX files that it runs, by the name of the graph."""
        return self.manifest.of_format(self.format)

    def entry(self, name: str) -> GraphEntry:
        """The manifest's entry for the graph ``name`` in ONNX.

        Raises:
            BundleError: if the bundle does not have it.
        """
        if name not in self.graphs:
            have = ", ".join(self.graphs)
            hint = f"export it with --component {name}" if name in GRAPHS else f"choose from {have}"
            raise BundleError(
                f"{self.folder} has no {name or repr(name)} graph in ONNX{f', only {have}' if have else ''}", hint
            )
        return self.graphs[name]

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, read from ``vocab.json``.

        Raises:
            BundleError: if the bundle has none.
        """
        path = self.folder / "vocab.json"
        if not path.is_file():
            raise BundleError(
                f"{self.folder} has no vocab.json, so it cannot take text",
                "export it with --vocab FILE, or give ids: open_bundle(…).generate([[3, 4, 5]])",
            )
        return Vocabulary.read(path)

    def generate(
        self,
        inputs: Sequence[str] | Sequence[Sequence[int]],
        *,
        num_beams: int = 1,
        max_length: int | None = None,
        min_length: int = 0,
        length_penalty: float = 1.0,
        num_hypotheses: int = 1,
        batch_size: int = DEFAULT_BATCH,
        pad_to: int | None = None,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[Generation]:
        """The best results for each input, in the order of ``inputs``::

            for found in bundle.generate(["knight", "transformer"], num_beams=4):
                print(found.text, found.score)

        Inputs of similar length are decoded together, so that batches have little padding. One beam uses the ``greedy``
        graph, or ``generate`` if there is none; more beams use ``generate``. Without both, one beam uses ``encoder``
        and ``decoder``, which is slower. The options, and the resulting ids, are those of
        :class:`mytx.models.Generator`.

        Args:
            inputs: texts, or lists of ids. A padding id in a list is treated like any other id, and is not masked. An
                empty source is not decoded: its results are empty and have the score 0.
            num_beams: hypotheses kept in each step; 1 is greedy search.
            max_length: the most tokens of a result; None means 256, or the number of positions if that is smaller.
            min_length: the fewest tokens of a result.
            length_penalty: 0 or more.
            num_hypotheses: results for each input, at most ``num_beams``.
            batch_size: number of inputs that are decoded at once.
            pad_to: add padding to each source up to this number of tokens, without masking it. Some models were
                trained in this way and need it.
            progress: called after each batch with the number of inputs that are done.

        Raises:
            OptionError: if there are no inputs, for ids that the model does not have, for a source longer than the
                model's positions, and for an option out of range.
            BundleError: if the bundle lacks the graph, or a vocabulary for texts.
            MytxError: for characters that the vocabulary does not have.
        """
        asked = SearchOptions(num_beams, max_length, min_length, length_penalty, num_hypotheses)
        options = self.check_options(asked, batch_size)
        search = self.search(self._search_graph(num_beams))
        sources = [self._source(item, pad_to) for item in listed_inputs(inputs)]
        found: list[list[tuple[tuple[int, ...], float]]] = [[((), 0.0)] * num_hypotheses for _ in sources]
        real = [place for place, source in enumerate(sources) if source]
        done = len(sources) - len(real)
        for batch in batches_of([sources[place] for place in real], batch_size):
            places = [real[place] for place in batch]
            results = search(*padded([sources[place] for place in places], self._ids["pad"]), options)
            for place, rows in zip(places, hypotheses_of(results), strict=True):
                found[place] = rows
            done += len(places)
            progress(done)
        return [Generation(tuple(Hypothesis(ids, score, self._text(ids)) for ids, score in rows)) for rows in found]

    def check_options(self, options: SearchOptions, batch_size: int = DEFAULT_BATCH) -> SearchOptions:
        """The options with ``max_length`` filled in, after the checks of :meth:`generate` that need no inputs.

        Raises:
            OptionError: for an option out of range.
            BundleError: if the bundle has no graph for these options.
        """
        kind = self.manifest.kind
        if kind not in ("translation", "couplet"):
            raise BundleError(
                f"{self.folder} holds a {kind} model, which mytx cannot decode with", "run its graphs: see inspect"
            )
        checked = options.within(self.config["max_length"], self.config["tgt_vocab_size"])
        if whole_number("batch_size", batch_size) < 1:
            raise OptionError(f"batch_size is {batch_size}", "choose 1 or more")
        self._search_graph(options.num_beams)
        return checked

    def encode(self, text: str, pad_to: int | None = None) -> list[int]:
        """The ids of ``text`` as :meth:`generate` takes them; no ids for a blank text.

        Raises:
            MytxError: for characters that the vocabulary does not have, or a text with too many tokens.
        """
        return self._source(text, pad_to)

    def greedy(self, source: Sequence[int], max_length: int | None = None) -> list[int]:
        """The target ids for one source by greedy search, as from :meth:`generate`.

        Raises:
            MytxError: as :meth:`generate`, and for an empty source.
        """
        if not len(source):
            raise OptionError("the text is empty", "give at least one token")
        return list(self.generate([source], max_length=max_length)[0].ids)

    def translate(self, text: str, max_length: int | None = None, pad_to: int | None = None) -> str:
        """The target text for one source text by greedy search, as from :meth:`generate`.

        Raises:
            MytxError: as :meth:`generate`, and for an empty text.
        """
        if not text.strip():
            raise OptionError("the text is empty", "give at least one token")
        return self.generate([text], max_length=max_length, pad_to=pad_to)[0].text or ""

    @cached_property
    def config(self) -> dict[str, Any]:
        """The model's configuration, read from ``config.json``.

        Raises:
            BundleError: if it is damaged.
        """
        path = self.folder / "config.json"
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if self.manifest.kind == CUSTOM_KIND:
                values["source"], values["methods"]
            else:
                values["max_length"], values["tgt_vocab_size"], values["src_vocab_size"]
                for name in (name for name in NUMBERS if name in values):
                    if not (fits(values[name], int) and 0 <= values[name] < 2**31):
                        raise ValueError(f"{name} is {values[name]!r}")
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise BundleError(f"{path} is damaged: {type(error).__name__}: {error}", REBUILD) from error
        return dict(values)

    @property
    def _ids(self) -> dict[str, int]:
        return {name: int(self.config[f"{name}_id"]) for name in ("pad", "bos", "eos")}

    def _search_graph(self, num_beams: int) -> str:
        """The name of the graph that decodes with ``num_beams`` beams, as :meth:`search` takes it."""
        missing = "greedy" if num_beams == 1 else "generate"
        return search_graph(self.graphs, num_beams) or self.entry(missing).contract.graph  # raises an error

    def search(self, name: str) -> Search:
        """The search with the graph ``name``: ``greedy``, ``generate``, or ``decoder`` for encoder and decoder.

        Raises:
            BundleError: if the bundle does not have the graph.
        """
        return open_search(name, self.graph, {name: self.entry(name).contract}, self._ids)

    def _source(self, item: str | Sequence[int], pad_to: int | None) -> list[int]:
        """The ids of a text, or the given ids after a check, with padding up to ``pad_to``."""
        if isinstance(item, str):
            source = self.vocabulary.encode_source(item) if item.strip() else []
        else:
            source = [whole_number("an id", token) for token in item]
        limit, longest = self.config["src_vocab_size"], self.config["max_length"]
        if source and pad_to is not None:
            if whole_number("pad_to", pad_to) < len(source):
                raise OptionError(f"the text has {len(source)} tokens, --pad-to is {pad_to}", "give a larger one")
            if pad_to > longest:
                raise OptionError(f"--pad-to is {pad_to}, the model has {longest} positions", "give a smaller one")
            source += [self._ids["pad"]] * (pad_to - len(source))
        if len(source) > longest:
            raise OptionError(f"the text has {len(source)} tokens, the model has {longest} positions", "split it")
        wrong = [token for token in source if not 0 <= token < limit]
        if wrong:
            raise OptionError(f"id {wrong[0]} is outside the vocabulary of {limit}", "encode it with the model's own")
        return source

    def _text(self, ids: Sequence[int]) -> str | None:
        """The text of a result; None without a vocabulary."""
        return self.vocabulary.decode_target(ids) if (self.folder / "vocab.json").is_file() else None
