"""Vocabularies: tokens and their ids. Needs no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .errors import CheckpointError, MytxError

FILE_NAME = "vocab.json"

#: Common names of special tokens, best first; upper and lower case are the same.
SPECIAL = {
    "pad_id": ("<pad>", "[pad]", "<blank>"),
    "bos_id": ("<s>", "<bos>", "<sos>", "[bos]", "<go>"),
    "eos_id": ("</s>", "<eos>", "[eos]"),
    "unk_id": ("<unk>", "[unk]", "<oov>"),
}
# The form of these and other special tokens, such as <mask> and [SEP]; no single character has it.
SPECIAL_FORM = re.compile(r"<[^<>\s]+>|\[[A-Za-z]+\]")


def find_vocab(path: str | Path) -> Path | None:
    """``vocab.json`` in the folder ``path``, or next to the file ``path``; None if there is none."""
    path = Path(path)
    candidate = (path if path.is_dir() else path.parent) / FILE_NAME
    return candidate if candidate.is_file() else None


def special_ids(tokens: Mapping[str, int]) -> dict[str, int]:
    """The ids of the special tokens in ``tokens``, by the names in :data:`SPECIAL`."""
    lower = {token.lower(): number for token, number in reversed(list(tokens.items()))}
    return {
        kind: next(lower[name] for name in names if name in lower)
        for kind, names in SPECIAL.items()
        if any(name in lower for name in names)
    }


@dataclass(frozen=True)
class Vocabulary:
    """The ids of the tokens of each side. One vocabulary may serve both sides: then they are equal.

    If all ordinary tokens of a side are single characters, its text is split into characters, otherwise at whitespace.

    Attributes:
        source: tokens of the input text.
        target: tokens of the output text.
        name: origin of the vocabulary, for messages.
    """

    source: dict[str, int]
    target: dict[str, int]
    name: str = FILE_NAME

    @classmethod
    def read(cls, path: str | Path) -> Vocabulary:
        """Read a JSON file: ``{token: id}`` for both sides, or ``{"source": {…}, "target": {…}}``.

        Raises:
            CheckpointError: if it is missing or malformed.
        """
        path = Path(path)
        try:
            values = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique)
        except FileNotFoundError as error:
            raise CheckpointError(f"{path}: no such file", "--vocab takes a JSON file of {token: id}") from error
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}", "--vocab takes a JSON file") from error
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{path} is not a vocabulary: {error}",
                "a JSON file of {token: id} is expected; --vocab FILE gives another",
            ) from error
        return cls.from_dict(values, str(path))

    @classmethod
    def from_dict(cls, values: Any, name: str = "the vocabulary") -> Vocabulary:
        """The vocabulary in ``{token: id}`` or ``{"source": {…}, "target": {…}}``.

        Raises:
            CheckpointError: if it is malformed.
        """
        split = isinstance(values, Mapping) and set(values) == {"source", "target"}
        if split and all(isinstance(side, Mapping) for side in values.values()):
            return cls(checked(values["source"], f"{name}, source"), checked(values["target"], f"{name}, target"), name)
        side = checked(values, name)
        return cls(side, side, name)

    def to_json(self) -> str:
        """The JSON text that :meth:`read` reads."""
        values = self.source if self.source == self.target else {"source": self.source, "target": self.target}
        return json.dumps(values, ensure_ascii=False, indent=1) + "\n"

    def special_ids(self, with_padding: bool = True) -> dict[str, int]:
        """``pad_id``, ``bos_id`` and ``eos_id``, if they have tokens; the last two are those of the target.

        Raises:
            CheckpointError: if ``with_padding`` and the two sides have different padding ids.
        """
        source, target = special_ids(self.source), special_ids(self.target)
        ids: dict[str, int] = {name: target[name] for name in ("bos_id", "eos_id") if name in target}
        if with_padding:
            pads = [side["pad_id"] for side in (source, target) if "pad_id" in side]
            if len(set(pads)) > 1:
                raise CheckpointError(
                    f"{self.name}: padding is {source['pad_id']} in the source and {target['pad_id']} in the target",
                    "a model here pads both sides with one id: say which with --pad-id N",
                )
            if pads:
                ids["pad_id"] = pads[0]
        return ids

    def check_rows(self, source_rows: int, target_rows: int | None) -> None:
        """Check that every id has a row in the embeddings; ``target_rows`` is None for a model without a target.

        Raises:
            CheckpointError: if there are more entries than rows, or an id is too large.
        """
        for side, tokens, rows in (("source", self.source, source_rows), ("target", self.target, target_rows)):
            if rows is None:
                continue
            if len(tokens) > rows:
                raise CheckpointError(
                    f"{self.name} has {len(tokens)} {side} entries, but the {side} embedding has {rows} rows",
                    "it belongs to another model: give the right one with --vocab FILE, or move it away",
                )
            token = max(tokens, key=tokens.__getitem__)
            if tokens[token] >= rows:
                raise CheckpointError(
                    f"{self.name} gives {token!r} the id {tokens[token]}, but the {side} embedding has {rows} rows",
                    "it belongs to another model: give the right one with --vocab FILE, or move it away",
                )

    def encode_source(self, text: str) -> list[int]:
        """The ids of ``text``, without special ids. An unknown token becomes ``<unk>`` if the vocabulary has it.

        Raises:
            MytxError: if there are unknown tokens and no ``<unk>``; the message names them.
        """
        characters, unknown = self._reading
        pieces = list(text) if characters else text.split()
        missing = list(dict.fromkeys(piece for piece in pieces if piece not in self.source))
        if missing and unknown is None:
            kind = "characters" if characters else "words"
            raise MytxError(
                f"{self.name} does not have the {kind} {', '.join(map(repr, missing))}",
                "leave them out, or use a vocabulary with <unk>",
            )
        return [self.source[piece] if piece in self.source else int(unknown or 0) for piece in pieces]

    def decode_target(self, ids: Iterable[int]) -> str:
        """The text of ``ids`` up to the end token, without special tokens. An id without a token becomes ``<id 7>``."""
        tokens, between, end = self._writing
        words = []
        for number in map(int, ids):
            if number == end:
                break
            token = tokens.get(number, f"<id {number}>")
            if not SPECIAL_FORM.fullmatch(token):
                words.append(token)
        return between.join(words)

    # Cached: reading a whole vocabulary takes longer than decoding a sentence.
    @cached_property
    def _reading(self) -> tuple[bool, int | None]:
        """Whether source text is split into characters, and the id of ``<unk>``."""
        return by_character(self.source), special_ids(self.source).get("unk_id")

    @cached_property
    def _writing(self) -> tuple[dict[int, str], str, int | None]:
        """The target's tokens by id, the separator between tokens, and the id of the end token."""
        tokens = {number: token for token, number in self.target.items()}
        return tokens, "" if by_character(self.target) else " ", special_ids(self.target).get("eos_id")


def by_character(tokens: Mapping[str, int]) -> bool:
    """Whether all tokens, except special ones, are single characters."""
    return all(len(token) == 1 for token in tokens if not SPECIAL_FORM.fullmatch(token))


def checked(values: Any, name: str) -> dict[str, int]:
    """``values`` as a dict of tokens and ids.

    Raises:
        CheckpointError: if it is empty, or if an id is not a whole number from 0 or occurs twice.
    """
    if not isinstance(values, Mapping):
        raise CheckpointError(
            f"{name} is a {type(values).__name__}, not an object of {{token: id}}", "give {token: id}"
        )
    if not values:
        raise CheckpointError(f"{name} is empty", "a vocabulary of {token: id} is expected")
    owner: dict[int, str] = {}
    for token, number in values.items():
        if not isinstance(token, str) or not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise CheckpointError(f"{name} gives {token!r} the id {repr(number)[:40]}", "ids are whole numbers from 0")
        if number in owner:
            raise CheckpointError(
                f"{name} gives {owner[number]!r} and {token!r} the same id {number}", "ids are unique"
            )
        owner[number] = token
    return dict(values)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object as a dict. Raises ``ValueError`` if a name occurs twice."""
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return values
