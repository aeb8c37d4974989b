"""Writing files of which the task chooses what stays float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..bundle.writing import Write
from ..formats.table import FORMATS, ExportOptions, Format
from .gate import Task

Progress = Callable[[str], None]


def write_formats(
    write: Write,
    chosen: Sequence[str],
    formats: Sequence[str],
    options: ExportOptions,
    folder: Path,
    task: Task | None,
    progress: Progress,
) -> frozenset[str]:
    """Write the files of ``formats``, those that are ``mixed`` last: ``task`` chooses the weights that stay float32 in
    these. Returns the names of those weights.
    """
    plain = [name for name in formats if not FORMATS[name].mixed]
    if plain:
        write(chosen, plain, options=options)
    kept: frozenset[str] = frozenset()
    for known in (FORMATS[name] for name in formats if name not in plain):
        assert task is not None

        def tried(kept: frozenset[str], known: Format = known, task: Task = task) -> None:
            write(task.searching, [known.name], options=replace(options, kept=kept))

        kept = task.choose(known, folder, tried, progress)
        write(chosen, [known.name], options=replace(options, kept=kept))
    return kept
