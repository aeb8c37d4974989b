"""The manifest of a bundle: its files, the contract of each graph, and whether parity passed. Imports no torch.

The hashes protect against accidents, such as a truncated copy or a file of another version. They are no signature:
whoever can change a file can change the manifest too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from ..cases.case import Array
from ..contracts.contract import Contract
from ..errors import BundleError, OptionError
from ..formats.onnx.storage import read_header
from ..formats.table import FORMATS, PRECISIONS
from ..parity.task_report import TaskReport
from .typed import fits

MANIFEST = "manifest.json"
MODEL = "model"  # folder with the exported model, in a bundle that failed
FORMAT = 1  # the version of the manifest
REBUILD = "export or copy it again"

# Keys of plain dicts in a manifest that its readers use, and the types of the values.
MODEL_TYPES = {"kind": str, "parameters": int, "weights_sha256": str}
ASSUMED_TYPES = {"name": str, "value": Any, "source": str}
ROW_TYPES = {"graph": str, "format": str, "passed": bool}  # a row of the report


@dataclass(frozen=True)
class FileEntry:
    """A file of the bundle: its path with forward slashes, its size and its SHA-256."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class GraphEntry:
    """A graph of the bundle: its file and format, for ONNX the opset and IR version, its contract, and the only runtime
    that can run it, if others cannot.
    """

    file: str
    format: str
    opset: int | None
    ir_version: int | None
    contract: Contract
    runtime: str = ""


@dataclass(frozen=True)
class Manifest:
    """The content of ``manifest.json``.

    Attributes:
        format: version of the manifest.
        tools: versions of mytx, Python and the libraries that made the bundle.
        model: ``kind``, ``parameters`` (their number), and the SHA-256 of the configuration and of the weights. Only
            ``kind`` is always there: use the properties.
        files: all files except the manifest.
        graphs: the graphs by the name of their file.
        assumed: settings that are not in the checkpoint.
        parity: a summary of the report; ``passed`` is None if parity was not checked.
    """

    format: int
    tools: dict[str, str]
    model: dict[str, Any]
    files: tuple[FileEntry, ...]
    graphs: dict[str, GraphEntry]
    assumed: tuple[dict[str, Any], ...]
    parity: dict[str, Any]

    @property
    def kind(self) -> str:
        """The kind of the model: ``translation``, or ``custom`` for a user's own."""
        return str(self.model["kind"])

    @property
    def parameters(self) -> int | None:
        """The number of parameters of the model; None if the manifest does not say."""
        return self.model.get("parameters")

    @property
    def weights_sha256(self) -> str | None:
        """The SHA-256 of the weights, as :func:`weights_sha256` gives it; None if the manifest does not say."""
        return self.model.get("weights_sha256")

    @property
    def task(self) -> tuple[TaskReport, ...]:
        """How files of other precisions decode, beside float32.

        Raises:
            BundleError: if this part of the manifest is damaged.
        """
        try:
            return tuple(map(TaskReport.from_dict, self.parity.get("task", ())))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise BundleError(f"the task in {MANIFEST} is damaged", REBUILD) from error

    @property
    def kept(self) -> frozenset[str]:
        """The names of the weights that are float32 in files in ``auto``.

        Raises:
            BundleError: if there are such files, and the manifest does not say.
        """
        if not self.of_format("auto"):
            return frozenset()
        layers = [one.layers for one in self.task if one.precision == "auto"]
        if not layers:
            raise BundleError(f"{MANIFEST} does not say what is float32 in files in auto", REBUILD)
        return frozenset(name for layer in layers[-1] if layer.kept for name in layer.weights)

    def of_format(self, name: str) -> dict[str, GraphEntry]:
        """The graphs with a file in this format, by the name of the graph."""
        return {entry.contract.graph: entry for entry in self.graphs.values() if entry.format == name}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; :meth:`from_dict` reads them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Manifest:
        """The manifest that :meth:`to_dict` wrote; raises ``LookupError`` or ``TypeError`` for other values."""
        graphs = {
            file: GraphEntry(**{**entry, "contract": Contract.from_dict(entry["contract"])})
            for file, entry in values["graphs"].items()
        }
        files = tuple(FileEntry(**entry) for entry in values["files"])
        for row in values["parity"].get("graphs", ()):
            _entry("parity/graphs", row, ROW_TYPES)
        manifest = cls(
            format=values["format"],
            tools=dict(values["tools"]),
            model=_entry("model", values["model"], MODEL_TYPES, optional=("parameters", "weights_sha256")),
            files=files,
            graphs=graphs,
            assumed=tuple(_entry("assumed", item, ASSUMED_TYPES) for item in values["assumed"]),
            parity=_entry("parity", values["parity"], {"passed": bool | None}),
        )
        _check_types(manifest)
        return manifest


def _check_types(manifest: Manifest) -> None:
    """Check all values, so that readers of a manifest can rely on their types; raise ``TypeError`` if one is wrong."""
    wrong = [name for name, hint in get_type_hints(Manifest).items() if not fits(getattr(manifest, name), hint)]
    wrong += [f"format {entry.format!r}" for entry in manifest.graphs.values() if entry.format not in FORMATS]
    if wrong:
        raise TypeError(f"{wrong[0]} is not of its type")


def _entry(name: str, values: dict[str, Any], types: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    """A copy of ``values``, after a check of the keys that readers of a manifest use.

    Raises:
        KeyError: if a key is missing that is not ``optional``.
        TypeError: if a value is of another type.
    """
    for key, hint in types.items():
        if key not in values and key not in optional:
            raise KeyError(f"{name}/{key}")
        if key in values and not fits(values[key], hint):
            raise TypeError(f"{name}/{key} is not of its type")
    return dict(values)


def describe_files(folder: Path) -> tuple[FileEntry, ...]:
    """An entry for each file in ``folder`` and its subfolders, except the manifest."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
    return tuple(describe_file(folder, path) for path in paths)


def describe_file(folder: Path, path: Path) -> FileEntry:
    """The entry for one file in ``folder``."""
    return FileEntry(path.relative_to(folder).as_posix(), path.stat().st_size, sha256(path))


def describe_graph(file: Path, format_name: str, contract: Contract) -> GraphEntry:
    """The entry for a graph's file."""
    if not FORMATS[format_name].precision:
        return GraphEntry(file.name, format_name, None, None, contract)
    model = read_header(file)
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    return GraphEntry(file.name, format_name, opset, model.ir_version, contract, FORMATS[format_name].runtime)


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
        BundleError: if there is none, or if it is damaged or of a newer version.
    """
    if not folder.exists():
        raise BundleError(f"{folder} does not exist", "mytx-export onnx makes a bundle")
    if folder.is_file() and (folder.parent / MANIFEST).is_file():
        raise BundleError(f"{folder} is a file of a bundle", f"give the folder: {folder.parent}")
    path = folder / MANIFEST
    if not path.is_file():
        raise BundleError(f"{folder} is not a bundle: it has no {MANIFEST}", "mytx-export onnx makes a bundle")
    try:
        values = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
        found = values["format"]
        if isinstance(found, int) and found > FORMAT:
            raise BundleError(f"{folder} has format {found}, this mytx knows up to {FORMAT}", "use a newer mytx")
        return Manifest.from_dict(values)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise BundleError(f"{path} is damaged: {reason}", REBUILD) from error


def onnx_format(folder: Path, manifest: Manifest, precision: str | None) -> str:
    """The format of the ONNX files to run: those of a precision, or for None the first that the bundle has.

    Raises:
        OptionError: if it has none of this precision.
    """
    present = [name for name, known in PRECISIONS.items() if manifest.of_format(known)]
    if precision is None:
        return PRECISIONS[present[0]] if present else "onnx"
    if precision not in present:
        have = f"choose from {', '.join(present)}" if present else "mytx-export onnx makes some"
        raise OptionError(f"{folder} has no ONNX files in {precision}", have)
    return PRECISIONS[precision]


def _refuse_constant(constant: str) -> None:
    """Refuse NaN and Infinity, which Python reads, but which are not JSON."""
    raise ValueError(f"{constant} is no JSON")
