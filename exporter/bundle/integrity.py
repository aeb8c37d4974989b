"""Integrity: all files in the manifest are in the bundle and unchanged, and there are no other files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ..errors import BundleError
from ..formats.onnx.inner import inner_tensors
from ..formats.onnx.storage import read_model
from ..formats.table import FORMATS
from .manifest import MANIFEST, REBUILD, FileEntry, Manifest, sha256


def check_files(folder: Path, manifest: Manifest) -> None:
    """Check a bundle with its manifest: every listed file is there, unchanged and a regular file; there are no other
    files; external data of ONNX files is in listed files.

    Raises:
        BundleError: with the first problem.
    """
    listed = {entry.path: entry for entry in manifest.files}
    graph_files = [entry.file for entry in manifest.graphs.values()]
    onnx_files = [entry.file for entry in manifest.graphs.values() if FORMATS[entry.format].precision]
    for path in [*listed, *graph_files]:
        _check_path(path)
    problems = [f"{path} is not listed in the manifest" for path in graph_files if path not in listed]
    present = dict(_walk(folder))
    problems += [problem for path, status in present.items() if (problem := _irregular(path, status))]
    problems += [f"{path} is missing" for path in listed if path not in present]
    problems += [f"{path} is of no graph" for path in listed if path.endswith(GRAPH_FILES) and path not in graph_files]
    problems += [f"{path} is not listed in the manifest" for path in present if path not in listed and path != MANIFEST]
    if not problems:  # files are read only after the checks above
        problems += [problem for path, entry in listed.items() if (problem := _changed(folder / path, entry))]
    if not problems:
        problems += [problem for path in onnx_files for problem in _external_problems(folder / path, set(listed))]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise BundleError(f"{folder}: {problems[0]}{more}", REBUILD)


def _check_path(path: str) -> None:
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\\" in path or ":" in path or str(pure) != path:
        raise BundleError(
            f"the manifest names {path!r}, which is not a path inside the bundle", "do not use this bundle"
        )


def _walk(folder: Path) -> Iterable[tuple[str, os.stat_result]]:
    for entry in sorted(folder.rglob("*")):
        status = entry.lstat()
        if not stat.S_ISDIR(status.st_mode):
            yield entry.relative_to(folder).as_posix(), status


def _irregular(path: str, status: os.stat_result) -> str:
    """What is wrong with the kind of a file; empty if it is a regular file."""
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a symbolic link"
    # Hard links are allowed: `cp -l`, deduplicated storage and package caches make them.
    return "" if stat.S_ISREG(status.st_mode) else f"{path} is not a regular file"


def _changed(path: Path, entry: FileEntry) -> str:
    """How a file differs from its entry in the manifest; empty if it does not."""
    size = path.stat().st_size
    if size != entry.bytes:
        return f"{entry.path} has {size} bytes, the manifest says {entry.bytes}"
    return "" if sha256(path) == entry.sha256 else f"{entry.path} has changed: its SHA-256 is not the manifest's"


def _external_problems(path: Path, listed: set[str]) -> list[str]:
    """Problems with external data of an ONNX file: it must be in files that the manifest lists."""
    try:
        graph, tensors = read_model(path)
        every = (*tensors, *inner_tensors(graph))
        places = {item.value for tensor in every for item in tensor.external_data if item.key == "location"}
    except Exception as error:
        return [f"{path.name} is not ONNX: {type(error).__name__}: {error}"]
    return [f"{path.name} has weights in {place!r}, which is not listed" for place in sorted(places - listed)]


GRAPH_FILES = tuple(file_format.file("") for file_format in FORMATS.values())  # the ends of their names
