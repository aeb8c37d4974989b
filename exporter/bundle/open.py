"""A bundle, open: its manifest, its graphs in onnxruntime, text to text. No torch here."""

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
    GraphSearch,
    HalvesSearch,
    Hypothesis,
    Search,
    SearchOptions,
    batches_of,
    padded,
    rows_of,
    several,
    whole_number,
)
from .integrity import check_files
from .manifest import REBUILD, GraphEntry, Manifest, read_manifest
from .staging import recover
from .typed import fits

NUMBERS = ("max_length", "src_vocab_size", "tgt_vocab_size", "pad_id", "bos_id", "eos_id")  # of a configuration


def open_bundle(
    path: str | Path, *, allow_failed: bool = False, check: bool = True, options: RuntimeOptions | None = None
) -> Bundle:
    """Open the bundle at ``path``.

    Args:
        path: the folder.
        allow_failed: open one whose parity failed, too.
        check: hold every file against the manifest first.
        options: how its graphs are run.

    Raises:
        BundleError: where there is no bundle, it is damaged, or its parity failed.

    What ``options`` have and this machine has not, an execution provider say, is said when a graph is first used.
    """
    folder = Path(path)
    recover(folder)
    manifest = read_manifest(folder)
    if manifest.parity.get("passed") is False and not allow_failed:
        raise BundleError(f"parity of {folder} failed when it was made", "see its parity.json, and do not deploy it")
    if check:
        check_files(folder, manifest)
    return Bundle(folder, manifest, options or RuntimeOptions())


class Bundle:
    """An open bundle. Graphs are loaded when they are first used.

    Attributes:
        folder: where it is.
        manifest: what is in it.
    """

    def __init__(self, folder: Path, manifest: Manifest, options: RuntimeOptions) -> None:
        self.folder = folder
        self.manifest = manifest
        self._options = options
        self._open: dict[str, OnnxRuntime] = {}

    def graph(self, name: str) -> OnnxRuntime:
        """The graph ``name``, open in onnxruntime.

        Raises:
            BundleError: where the bundle does not have it, or onnxruntime cannot load it.
            OptionError: for execution providers that there are not.
        """
        if name not in self._open:
            path = self.folder / self.entry(name).file
            try:
                self._open[name] = OnnxRuntime.open(path, self._options)
            except OptionError:
                raise
            except Exception as error:  # it raises classes of its own
                raise BundleError(f"onnxruntime cannot load {path}: {first_line(error)}", REBUILD) from error
        return self._open[name]

    def entry(self, name: str) -> GraphEntry:
        """What the manifest says of the graph ``name``.

        Raises:
            BundleError: where the bundle does not have it.
        """
        graphs = self.manifest.of_format("onnx")
        if name not in graphs:
            have = ", ".join(graphs)
            hint = f"export it with --component {name}" if name in GRAPHS else f"choose from {have}"
            raise BundleError(
                f"{self.folder} has no {name or repr(name)} graph in ONNX{f', only {have}' if have else ''}", hint
            )
        return graphs[name]

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary.

        Raises:
            BundleError: where the bundle has none.
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
        """The best results for each of ``inputs``, in their order::

            for found in bundle.generate(["knight", "transformer"], num_beams=4):
                print(found.text, found.score)

        Inputs of like lengths go together, so little of a batch is padding. One beam takes the ``greedy`` graph, more
        take ``generate``; without either, one beam does with ``encoder`` and ``decoder``, which is slower. The numbers
        mean what they mean in :class:`mytx.models.Generator`, and the ids are its ids.

        Args:
            inputs: texts, or for each its ids. Ids are taken as they are: a padding id among them is an id like any
                other, and is not masked. An empty source has empty results with a score of 0: nothing is decoded.
            num_beams: hypotheses kept in each step; 1 is greedy.
            max_length: the most tokens of a result; None is 256, or the number of positions where there are fewer.
            min_length: the fewest.
            length_penalty: 0 or more.
            num_hypotheses: results for each input, at most ``num_beams``.
            batch_size: inputs that are decoded at once.
            pad_to: fill each source with padding, not masked, to this many tokens. Some models were trained so, and
                give nonsense without.
            progress: told after each batch how many inputs are done.

        Raises:
            OptionError: for no inputs at all, ids that the model does not have, a source longer than its positions, a
                number that does not fit; the number's limits are named.
            BundleError: where the bundle lacks the graph, or a vocabulary for texts.
            MytxError: for characters that the vocabulary does not have.
        """
        options = self.check_options(
            SearchOptions(num_beams, max_length, min_length, length_penalty, num_hypotheses), batch_size
        )
        search = self.search(self._deciding(num_beams))
        sources = [self._source(item, pad_to) for item in several(inputs)]
        found: list[list[tuple[tuple[int, ...], float]]] = [[((), 0.0)] * num_hypotheses for _ in sources]
        real = [place for place, source in enumerate(sources) if source]
        done = len(sources) - len(real)
        for batch in batches_of([sources[place] for place in real], batch_size):
            places = [real[place] for place in batch]
            results = search(*padded([sources[place] for place in places], self._ids["pad"]), options)
            for place, rows in zip(places, rows_of(results), strict=True):
                found[place] = rows
            done += len(places)
            progress(done)
        text = self._text
        return [Generation(tuple(Hypothesis(ids, score, text(ids)) for ids, score in rows)) for rows in found]

    def check_options(self, options: SearchOptions, batch_size: int = DEFAULT_BATCH) -> SearchOptions:
        """What :meth:`generate` checks before it looks at its inputs; gives the options with ``max_length`` filled in.

        Raises:
            OptionError: for a number that does not fit.
            BundleError: where no graph of the bundle does this.
        """
        kind = self.manifest.model["kind"]
        if kind not in ("translation", "couplet"):
            raise BundleError(
                f"{self.folder} holds a {kind} model, which mytx cannot decode with", "run its graphs: see inspect"
            )
        checked = options.within(self.config["max_length"], self.config["tgt_vocab_size"])
        if whole_number("batch_size", batch_size) < 1:
            raise OptionError(f"batch_size is {batch_size}", "choose 1 or more")
        self._deciding(options.num_beams)
        return checked

    def encode(self, text: str, pad_to: int | None = None) -> list[int]:
        """The ids of ``text`` as :meth:`generate` takes them; none for a blank one.

        Raises:
            MytxError: for characters that the vocabulary does not have, or too many of them.
        """
        return self._source(text, pad_to)

    def greedy(self, source: Sequence[int], max_length: int | None = None) -> list[int]:
        """The target ids for one sentence, the most likely one at each step: :meth:`generate` for one.

        Raises:
            MytxError: as :meth:`generate`, and for an empty source.
        """
        if not len(source):
            raise OptionError("the text is empty", "give at least one token")
        return list(self.generate([source], max_length=max_length)[0].ids)

    def translate(self, text: str, max_length: int | None = None, pad_to: int | None = None) -> str:
        """Text to text, greedily: :meth:`generate` for one.

        Raises:
            MytxError: as :meth:`generate`, and for an empty text.
        """
        if not text.strip():
            raise OptionError("the text is empty", "give at least one token")
        return self.generate([text], max_length=max_length, pad_to=pad_to)[0].text or ""

    @cached_property
    def config(self) -> dict[str, Any]:
        """The model's configuration, as it stands in the bundle.

        Raises:
            BundleError: where it is damaged.
        """
        path = self.folder / "config.json"
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if self.manifest.model["kind"] == CUSTOM_KIND:
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

    def _deciding(self, num_beams: int) -> str:
        """The graph that decodes with so many beams, as :meth:`search` takes it."""
        graphs = self.manifest.of_format("onnx")
        names = ("greedy", "generate") if num_beams == 1 else ("generate",)
        for name in names:
            if name in graphs:
                return name
        if num_beams == 1 and {"encoder", "decoder"} <= set(graphs):
            return "decoder"
        return self.entry(names[0]).contract.graph  # which says what is missing

    def search(self, name: str) -> Search:
        """What decodes a batch with the graph ``name``: ``greedy``, ``generate``; ``decoder`` goes with ``encoder``.

        Raises:
            BundleError: where the bundle does not have it.
        """
        if name == "decoder":
            return HalvesSearch(self.graph("encoder"), self.graph("decoder"), self._ids)
        return GraphSearch(self.graph(name), self.entry(name).contract)

    def _source(self, item: str | Sequence[int], pad_to: int | None) -> list[int]:
        """The ids of a text, or those given, checked; with padding where it is wanted."""
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
        """Of a result; None without a vocabulary."""
        return self.vocabulary.decode_target(ids) if (self.folder / "vocab.json").is_file() else None
