"""A bundle, open: its manifest, its graphs in onnxruntime, text to text. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from ..models.vocab import Vocabulary
from .bundle import recover
from .contract import GRAPHS
from .errors import BundleError, OptionError
from .manifest import GraphEntry, Manifest, check_files, read_manifest
from .runtimes import OnnxRuntime, RuntimeOptions

DEFAULT_LENGTH = 256


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
            BundleError: where the bundle does not have it.
        """
        if name not in self._open:
            self._open[name] = OnnxRuntime.open(self.folder / self.entry(name).file, self._options)
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
            raise BundleError(f"{self.folder} has no vocab.json, so it cannot take text", "export it with --vocab FILE")
        return Vocabulary.read(path)

    def greedy(self, source: Sequence[int], max_length: int | None = None) -> list[int]:
        """The target ids for one sentence, the most likely one at each step, without the start and end ids.

        Args:
            source: ids.
            max_length: of the target; None is 256 or what the model has, if that is less.

        Raises:
            OptionError: for an empty source, ids or lengths that the model does not have.
            BundleError: where the bundle lacks the encoder or the decoder, or its graphs do not take ids.
        """
        self._check_decodes()
        source = [int(token) for token in source]
        encoder, decoder = self.entry("encoder").contract, self.entry("decoder").contract
        _check_source(source, encoder.input("src").limit, encoder.axes["source"].maximum)
        longest = decoder.axes["target"].maximum
        if max_length is None:
            max_length = DEFAULT_LENGTH if longest is None else min(DEFAULT_LENGTH, longest)
        if max_length < 1 or (longest is not None and max_length > longest):
            raise OptionError(f"max_length is {max_length}, the model has {longest} positions", "choose one in between")
        src = np.array([source], dtype=np.int64)
        padding = np.zeros(src.shape, dtype=bool)
        memory = self.graph("encoder").run({"src": src, "src_key_padding_mask": padding})["memory"]
        target = [decoder.ids["bos"]]
        while len(target) <= max_length:
            tgt = np.array([target], dtype=np.int64)
            logits = self.graph("decoder").run(
                {
                    "tgt": tgt,
                    "memory": memory,
                    "tgt_key_padding_mask": np.zeros(tgt.shape, dtype=bool),
                    "memory_key_padding_mask": padding,
                }
            )["logits"]
            best = int(logits[0, -1].argmax())
            if best == decoder.ids["eos"]:
                break
            target.append(best)
        return target[1:]

    def _check_decodes(self) -> None:
        kind = self.manifest.model["kind"]
        if kind not in ("translation", "couplet"):
            raise BundleError(
                f"{self.folder} holds a {kind} model, which turns no text into text", "run its graphs: see inspect"
            )
        self.entry("encoder"), self.entry("decoder")

    def translate(self, text: str, max_length: int | None = None, pad_to: int | None = None) -> str:
        """Text to text, by :meth:`greedy`.

        Args:
            text: a sentence.
            max_length: as for :meth:`greedy`.
            pad_to: fill the source with padding, not masked, to this many tokens. Some models were trained so, and
                give nonsense without.

        Raises:
            MytxError: as :meth:`greedy`, and for characters that the vocabulary does not have.
        """
        self._check_decodes()
        source = self.vocabulary.encode_source(text)
        if source and pad_to is not None:
            if pad_to < len(source):
                raise OptionError(f"the text has {len(source)} tokens, --pad-to is {pad_to}", "give a larger one")
            source += [self.entry("encoder").contract.ids["pad"]] * (pad_to - len(source))
        return self.vocabulary.decode_target(self.greedy(source, max_length))


def _check_source(source: Sequence[int], limit: int, longest: int | None) -> None:
    if not source:
        raise OptionError("the text is empty", "give at least one token")
    if longest is not None and len(source) > longest:
        raise OptionError(f"the text has {len(source)} tokens, the model has {longest} positions", "split it")
    wrong = [token for token in source if not 0 <= token < limit]
    if wrong:
        raise OptionError(f"id {wrong[0]} is outside the vocabulary of {limit}", "encode it with the model's own")
