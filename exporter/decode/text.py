"""Decoding lines of text with a bundle, in chunks, to an iterator or a file. No torch here."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..bundle.generation import DEFAULT_BATCH, Generation, SearchOptions
from ..bundle.manifest import MANIFEST, sha256
from ..bundle.open import Bundle
from ..errors import MytxError
from ..formats.table import FORMATS
from .lines import Line, decoded, in_chunks, open_input, raw_lines
from .partial_output import PartialOutput

BATCHES = 16  # batches in a chunk: enough to sort by length, and an interruption loses at most one chunk


@dataclass(frozen=True)
class Decoding:
    """How lines are decoded and written.

    Attributes:
        bundle: the open bundle that decodes.
        search: options of the search.
        batch_size: number of lines in a batch.
        pad_to: length to which sources are padded without a mask, in tokens; None pads to the longest, with a mask.
        as_json: whether a result is written as a JSON object or as text.
    """

    bundle: Bundle
    search: SearchOptions
    batch_size: int = DEFAULT_BATCH
    pad_to: int | None = None
    as_json: bool = False

    def checked(self) -> Decoding:
        """A copy with ``max_length`` filled in.

        Raises:
            MytxError: if the options do not fit the model, or the bundle cannot decode text.
        """
        search = self.bundle.check_options(self.search, self.batch_size)
        _ = self.bundle.vocabulary
        return Decoding(self.bundle, search, self.batch_size, self.pad_to, self.as_json)

    def chunks(
        self,
        lines: Iterable[Line],
        name: Callable[[Line], str],
        more: Callable[[], bool] = lambda: True,
        progress: Callable[[int], None] = lambda done: None,
    ) -> Iterator[tuple[list[Line], str]]:
        """Decode ``lines`` in chunks; yields the lines of each chunk and their output.

        Args:
            lines: lines of text. A blank line gives a blank line, so that output and input lines correspond.
            name: returns the name of a line for messages; it may be empty.
            more: as for :func:`in_chunks`.
            progress: called after each batch with the number of done lines of the chunk.

        Raises:
            MytxError: if a line cannot be decoded; the message names it. The lines before it are yielded first.
        """
        for chunk in in_chunks(self._encoded(lines, name), self.batch_size * BATCHES, more):
            found = self.bundle.generate(
                [ids for _, ids in chunk],
                **asdict(self.search),
                batch_size=self.batch_size,
                progress=progress,
            )
            rows = [self._written(line.text, result) for (line, _), result in zip(chunk, found, strict=True)]
            yield [line for line, _ in chunk], "".join(f"{row}\n" for row in rows)

    def _encoded(self, lines: Iterable[Line], name: Callable[[Line], str]) -> Iterator[tuple[Line, list[int]]]:
        for line in lines:
            try:
                ids = self.bundle.encode(line.text, self.pad_to)
            except MytxError as error:
                where = name(line)
                raise type(error)(f"{where}: {error.message}" if where else error.message, error.hint) from error
            yield line, ids

    def _written(self, text: str, result: Generation) -> str:
        """One line for each hypothesis, or one JSON object for all."""
        if not self.as_json:
            return "\n".join(_one_line(found.text or "") for found in result.hypotheses)
        rows = [{"output": found.text, "score": found.score, "ids": found.ids} for found in result.hypotheses]
        values: dict[str, Any] = {"text": text, **rows[0]}
        if self.search.num_hypotheses > 1:
            values["hypotheses"] = rows
        return json.dumps(values, ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class DecodedFile:
    """The result of :func:`decode_file`.

    Attributes:
        output: path of the output file.
        lines: number of input lines.
        resumed: how many of them an earlier, interrupted run had done.
        seconds: duration of this run.
    """

    output: Path
    lines: int
    resumed: int
    seconds: float


def decode_file(
    decoding: Decoding,
    source: Path,
    target: Path,
    *,
    force: bool = False,
    progress: Callable[[str], None] = lambda message: None,
    note: Callable[[str], None] = lambda message: None,
) -> DecodedFile:
    """Decode a text file line by line, in constant memory. After an interruption, the same call resumes the work.

    Args:
        decoding: how to decode and write.
        source: path of the input.
        target: path of the output. It appears there when it is complete; see :class:`PartialOutput`.
        force: replace an existing output.
        progress: called with the progress, as text.
        note: called with messages for the user.

    Raises:
        MytxError: if options do not fit, a file cannot be read or written, or a line cannot be decoded.
    """
    decoding = decoding.checked()
    facts = {
        "the bundle with manifest": sha256(decoding.bundle.folder / MANIFEST)[:12],
        "precision": FORMATS[decoding.bundle.format].precision,
        **asdict(decoding.search),
        "pad_to": decoding.pad_to,
        "json": decoding.as_json,
    }
    begun, size = time.monotonic(), source.stat().st_size if source.is_file() else 0
    with open_input(source) as file, PartialOutput(target, source, facts, force=force) as output:

        def start() -> Iterator[bytes]:
            if file.seekable():
                file.seek(0)
            return raw_lines(file)

        raw = output.rest(start)
        resumed = output.lines
        if resumed:
            note(f"{output.part} has the first {resumed:,} lines; continuing after them")

        def say(more: int) -> None:
            rate = (output.lines - resumed + more) / max(time.monotonic() - begun, 1e-9)
            part = f", {100 * file.tell() / size:.0f} %" if size else ""
            progress(f"{output.lines + more:,} lines{part}, {rate:,.0f} a second")

        lines = decoded(raw, str(source), resumed + 1)
        for chunk, text in decoding.chunks(lines, lambda line: f"line {line.number} of {source}", progress=say):
            output.add(text, [line.raw for line in chunk])
        place = output.finish()
    return DecodedFile(place, output.lines, resumed, time.monotonic() - begun)


def _one_line(text: str) -> str:
    """``text`` in one line: a token may contain a line end."""
    return " ".join(text.splitlines()) if "\n" in text or "\r" in text else text
