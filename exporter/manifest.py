"""The manifest of a bundle: what is in it, what each graph takes and gives, what was proven. No torch here.

The hashes guard against accidents: a truncated copy, a file of another version. They are no signature: whoever can
change a file can change the manifest too.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from .contract import Contract
from .errors import BundleError
from .formats import FORMATS
from .onnx_inner import inner_tensors
from .onnx_stream import read_header, read_model
from .typed import fits

Array = NDArray[np.generic]
MANIFEST = "manifest.json"
MODEL = "model"  # in a bundle that failed: the model that it was made from
FORMAT = 1
GRAPH_FILES = tuple(known.file("") for known in FORMATS.values())  # what their names end with
REBUILD = "export it again, or copy it again from where it came"


@dataclass(frozen=True)
class FileEntry:
    """A file of the bundle: its path with forward slashes, its size and its SHA-256."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class GraphEntry:
    """A graph of the bundle: its file, the versions that a runtime of ONNX must know, its contract."""

    file: str
    format: str
    opset: int | None
    ir_version: int | None
    contract: Contract


@dataclass(frozen=True)
class Manifest:
    """A bundle, described.

    Attributes:
        format: version of this description.
        tools: versions of what made it.
        model: ``kind``, ``parameters``, and the SHA-256 of the configuration and of the weights.
        files: all files but the manifest.
        graphs: by the name of their file.
        assumed: what the checkpoint did not say.
        parity: the report; ``passed`` is None where parity was not checked.
    """

    format: int
    tools: dict[str, str]
    model: dict[str, Any]
    files: tuple[FileEntry, ...]
    graphs: dict[str, GraphEntry]
    assumed: tuple[dict[str, Any], ...]
    parity: dict[str, Any]

    def of_format(self, name: str) -> dict[str, GraphEntry]:
        """The graphs in a format, by their own name."""
        return {entry.contract.graph: entry for entry in self.graphs.values() if entry.format == name}

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON; :meth:`from_dict` is the way back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Manifest:
        """The way back from :meth:`to_dict`."""
        graphs = {
            file: GraphEntry(**{**entry, "contract": Contract.from_dict(entry["contract"])})
            for file, entry in values["graphs"].items()
        }
        files = tuple(FileEntry(**entry) for entry in values["files"])
        manifest = cls(
            format=values["format"],
            tools=dict(values["tools"]),
            model=dict(values["model"]),
            files=files,
            graphs=graphs,
            assumed=tuple(values["assumed"]),
            parity=_parity(values["parity"]),
        )
        _check_types(manifest)
        return manifest


def _check_types(manifest: Manifest) -> None:
    """Raise ``TypeError`` where a value is not what it should be: whoever reads it need not ask again."""
    model, hints = manifest.model, get_type_hints(Manifest)
    wrong = [name for name, hint in hints.items() if not fits(getattr(manifest, name), hint)]
    wrong += [f"format {entry.format!r}" for entry in manifest.graphs.values() if entry.format not in FORMATS]
    wrong += ["kind"] * (not fits(model["kind"], str)) + ["parameters"] * (not fits(model.get("parameters", 0), int))
    wrong += ["passed"] * (not fits(manifest.parity["passed"], bool | None))
    if wrong:
        raise TypeError(f"{wrong[0]} is not of its type")


def _parity(values: dict[str, Any]) -> dict[str, Any]:
    """What was proven; raises where a row of it lacks something."""
    for row in values.get("graphs", ()):
        row["graph"], row["format"], row["passed"]
    return dict(values)


def describe_files(folder: Path) -> tuple[FileEntry, ...]:
    """An entry for each file below ``folder`` but the manifest."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
    return tuple(describe_file(folder, path) for path in paths)


def describe_file(folder: Path, path: Path) -> FileEntry:
    """The entry for one file below ``folder``."""
    return FileEntry(path.relative_to(folder).as_posix(), path.stat().st_size, sha256(path))


def describe_graph(file: Path, format_name: str, contract: Contract) -> GraphEntry:
    """The entry for the file of a graph."""
    if format_name != "onnx":
        return GraphEntry(file.name, format_name, None, None, contract)
    model = read_header(file)
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    return GraphEntry(file.name, format_name, opset, model.ir_version, contract)


def sha256(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_sha256(weights: Mapping[str, Array]) -> str:
    """One SHA-256 over all parameters and buffers: their names, dtypes, shapes and bytes, in the order of names."""
    digest = hashlib.sha256()
    for name, array in sorted(weights.items()):
        digest.update(f"{name} {array.dtype} {list(array.shape)}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the bundle at ``folder``.

    Raises:
        BundleError: where there is none, or it is damaged or of a newer version.
    """
    if not folder.exists():
        raise BundleError(f"{folder} does not exist", "mytx-export onnx makes a bundle")
    if folder.is_file() and (folder.parent / MANIFEST).is_file():
        raise BundleError(f"{folder} is a file of a bundle", f"give the folder: {folder.parent}")
    path = folder / MANIFEST
    if not path.is_file():
        raise BundleError(f"{folder} is not a bundle: it has no {MANIFEST}", "mytx-export onnx makes a bundle")
    try:
        values = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refused)
        found = values["format"]
        if isinstance(found, int) and found > FORMAT:
            raise BundleError(f"{folder} has format {found}, this mytx knows up to {FORMAT}", "use a newer mytx")
        return Manifest.from_dict(values)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BundleError(f"{path} is damaged: {type(error).__name__}: {error}", REBUILD) from error


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def check_files(folder: Path, manifest: Manifest) -> None:
    """Check that the bundle is what its manifest says: each file there, unchanged, a regular file with one link inside
    the bundle; no file more; weights outside of a graph's file among the files listed.

    Raises:
        BundleError: naming what is wrong.
    """
    listed = {entry.path: entry for entry in manifest.files}
    graph_files = [entry.file for entry in manifest.graphs.values()]
    onnx_files = [entry.file for entry in manifest.graphs.values() if entry.format == "onnx"]
    for path in [*listed, *graph_files]:
        _check_path(path)
    problems = [f"{path} is not listed in the manifest" for path in graph_files if path not in listed]
    present = dict(_walk(folder))
    problems += [problem for path, status in present.items() if (problem := _irregular(path, status))]
    problems += [f"{path} is missing" for path in listed if path not in present]
    problems += [f"{path} is of no graph" for path in listed if path.endswith(GRAPH_FILES) and path not in graph_files]
    problems += [f"{path} is not listed in the manifest" for path in present if path not in listed and path != MANIFEST]
    if not problems:  # only now is it safe to read
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
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a symbolic link"
    if not stat.S_ISREG(status.st_mode):
        return f"{path} is not a regular file"
    return f"{path} is a hard link: it has {status.st_nlink} names" if status.st_nlink > 1 else ""


def _changed(path: Path, entry: FileEntry) -> str:
    size = path.stat().st_size
    if size != entry.bytes:
        return f"{entry.path} has {size} bytes, the manifest says {entry.bytes}"
    return "" if sha256(path) == entry.sha256 else f"{entry.path} has changed: its SHA-256 is not the manifest's"


def _external_problems(path: Path, listed: set[str]) -> list[str]:
    """Weights outside of the file: they must be in files that were checked."""
    try:
        graph, tensors = read_model(path)
        every = itertools.chain(tensors, inner_tensors(graph))
        places = {item.value for tensor in every for item in tensor.external_data if item.key == "location"}
    except Exception as error:
        return [f"{path.name} is not ONNX: {type(error).__name__}: {error}"]
    return [f"{path.name} has weights in {place!r}, which is not listed" for place in sorted(places - listed)]
