"""The task's data: sources, and references if there are some. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...models.errors import MytxError
from ...models.vocab import Vocabulary
from ..errors import OptionError

MADE = 100  # sentences, where there are no data
LENGTHS = range(5, 21)  # of these
SEED = 0


@dataclass(frozen=True)
class TaskData:
    """Sentences to decode.

    Attributes:
        name: for the report.
        sources: ids of each.
        references: right results of each as text, one or more; empty if there are none.
    """

    name: str
    sources: tuple[tuple[int, ...], ...]
    references: tuple[tuple[str, ...], ...] = ()


def read_task(path: Path, vocabulary: Vocabulary | None, *, ids: int, longest: int) -> TaskData:
    """The data in a text file in UTF-8: a source in each line, or a source, a tab and one or more references.

    Args:
        path: the file. Blank lines are left out.
        vocabulary: for the sources. Without one they are ids with spaces between them, and so are the references.
        ids: size of the source vocabulary.
        longest: most tokens of a source.

    Raises:
        OptionError: if the file cannot be read, has no sentences, or a line does not fit; the error names the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors put a mark at the beginning
    except UnicodeDecodeError as error:
        raise OptionError(
            f"{path} is not UTF-8: {error.reason} at byte {error.start}", "convert it to UTF-8"
        ) from error
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}", "check the path to --task-data") from error
    rows = [(number, line.split("\t")) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not rows:
        raise OptionError(f"{path} has no sentences", "give a file with a source in each line")
    with_references = len(rows[0][1]) > 1
    sources, references = [], []
    for number, (source, *right) in rows:
        where = f"line {number} of {path}"
        if bool(right) != with_references:
            raise OptionError(
                f"{where} has {'a reference' if right else 'no reference'}, line {rows[0][0]} has "
                f"{'one' if with_references else 'none'}",
                "give all lines a reference after a tab, or none",
            )
        sources.append(_source(source, where, vocabulary, ids, longest))
        references.append(tuple(item.strip() for item in right if item.strip()))
        if with_references and not references[-1]:
            raise OptionError(f"{where} has an empty reference", "give all lines a reference after a tab, or none")
    return TaskData(path.name, tuple(sources), tuple(references) if with_references else ())


def made_task(special: Sequence[int], *, ids: int, longest: int) -> TaskData:
    """Sentences of random ids from a fixed seed, where there are no data: they say little about a real task.

    Args:
        special: ids that have no place in a source.
        ids: size of the source vocabulary.
        longest: most tokens of a source.
    """
    rng = np.random.default_rng(SEED)
    known = np.setdiff1d(np.arange(ids), special) if len(set(special)) < ids else np.arange(ids)
    lengths = rng.integers(min(LENGTHS[0], longest), min(LENGTHS[-1], longest) + 1, MADE)
    return TaskData("random ids", tuple(tuple(rng.choice(known, length).tolist()) for length in lengths))


def _source(text: str, where: str, vocabulary: Vocabulary | None, ids: int, longest: int) -> tuple[int, ...]:
    if not text.strip():
        raise OptionError(f"{where} has no source", "give at least one token")
    try:
        found = tuple(vocabulary.encode_source(text) if vocabulary else map(int, text.split()))
    except MytxError as error:
        raise OptionError(f"{where}: {error.message}", error.hint) from error
    except ValueError as error:
        raise OptionError(f"{where} is not ids", "there is no vocabulary: give ids, or --vocab FILE") from error
    if len(found) > longest:
        raise OptionError(f"{where} has {len(found)} tokens, the model has {longest} positions", "split it")
    if wrong := [token for token in found if not 0 <= token < ids]:
        raise OptionError(
            f"{where}: id {wrong[0]} is outside the vocabulary of {ids}", "encode it with the model's own"
        )
    return found
