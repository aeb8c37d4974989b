"""``inspect``: a description of a bundle or a checkpoint, in words and as data."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from ..errors import MytxError
from ..formats.table import FORMATS
from .integrity import check_files
from .manifest import MANIFEST, GraphEntry, read_manifest

SHOWN = 10  # bad weights in words; all are in the data


def inspect_path(path: Path, keys: tuple[str, ...] = ()) -> dict[str, Any]:
    """A description of the bundle or checkpoint at ``path``.

    Args:
        path: a folder or file.
        keys: for a checkpoint, as for :func:`mytx.models.describe_checkpoint`.

    Returns:
        ``what`` (``bundle`` or ``checkpoint``), ``details`` as data, and for people ``title``, ``sections`` (a list of
        lines by section title) and ``next`` (the command to run next).

    Raises:
        MytxError: if it is neither.
    """
    if (path / MANIFEST).is_file():
        return _inspect_bundle(path)
    return _inspect_checkpoint(path, keys)


def _inspect_bundle(path: Path) -> dict[str, Any]:
    manifest = read_manifest(path)
    try:
        check_files(path, manifest)
        whole = "every file is there and unchanged"
    except MytxError as error:
        whole = error.message
    passed = manifest.parity.get("passed")
    verdict = {True: "passed", False: "FAILED", None: "not checked"}[passed]
    size = sum(entry.bytes for entry in manifest.files)
    parameters = "an unknown number of" if manifest.parameters is None else f"{manifest.parameters:,}"
    sections = {
        "Model": [
            f"{manifest.kind}, {parameters} parameters, {size:,} bytes in all",
            f"parity when it was made: {verdict}",
            f"now: {whole}",
        ],
        **{f"{entry.contract.graph}  ({file})": _describe_contract(entry) for file, entry in manifest.graphs.items()},
        "Decoded beside float32": [f"{one.file}: {'; '.join(one.lines)}" for one in manifest.task],
        "Assumed, as the checkpoint does not say": [
            f"{item['name']}={item['value']} ({item['source']})" for item in manifest.assumed
        ],
        "Made with": [", ".join(f"{name} {version}" for name, version in manifest.tools.items())],
    }
    return {
        "what": "bundle",
        "title": f"{path}: a bundle with {', '.join(manifest.graphs)}",
        "details": {"intact": whole.startswith("every"), **manifest.to_dict()},
        "sections": sections,
        "next": f"mytx-export verify {shlex.quote(str(path))}",
    }


def _describe_contract(entry: GraphEntry) -> list[str]:
    contract = entry.contract
    rows = [("in ", spec) for spec in contract.inputs] + [("out", spec) for spec in contract.outputs]
    width = max(len(spec.name) for _, spec in rows)
    lines = [
        f"{way} {spec.name:<{width}}  {spec.dtype} [{', '.join(map(str, spec.labels))}]  "
        f"{'optional; ' if spec.optional else ''}{spec.meaning}"
        for way, spec in rows
    ]
    if contract.ids:
        lines.append("ids: " + ", ".join(f"{name} {value}" for name, value in contract.ids.items()))
    if entry.runtime:
        lines.append(f"only {entry.runtime} can run this file: it has operators of its own")
    if FORMATS[entry.format].runs_code:
        lines.append("opening this file can run code: open it only if you trust its source")
    return lines


def _inspect_checkpoint(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    from ...models import config_of, describe_checkpoint, load_model

    quoted = shlex.quote(str(path))
    if path.is_dir():
        model = load_model(path)
        config = config_of(model)
        values = {**config.transformer.to_dict(), **config.to_dict()}
        values.pop("transformer"), values.pop("assumed")
        return {
            "what": "checkpoint",
            "title": f"{path}: a {config.kind} model that save_model wrote",
            "details": config.to_dict(),
            "sections": {"Configuration": [f"{name}: {value}" for name, value in values.items()]},
            "next": f"mytx-export onnx {quoted} -o bundle",
        }
    found = describe_checkpoint(path, keys)
    heads = found.likely_heads
    ignored = [f"ignore={name}" for name in found.unknown_tensors]
    given = "".join(f" --key {shlex.quote(key)}" for key in [*keys, *ignored])
    sections = {
        "Weights that an export refuses": _describe_bad_weights(found.bad_weights),
        "Read from the shapes": [f"{name}: {value}" for name, value in found.sizes.items() if value is not None],
        "Not in a checkpoint": [
            f"the number of attention heads: give --nhead, probably one of {', '.join(map(str, heads))}",
            *(f"{item['name']}: {item['value']} is assumed ({item['source']})" for item in found.assumed),
        ],
        "Tensors without a place": [f"{name}: leave it out with --key ignore={name}" for name in found.unknown_tensors],
    }
    return {
        "what": "checkpoint",
        "title": f"{path}: a {found.kind} model, {found.parameters:,} values, attention in the {found.layout} layout",
        "details": found.to_dict(),
        "sections": sections,
        "next": "" if found.bad_weights else f"mytx-export onnx {quoted} --nhead N{given} -o bundle",
    }


def _describe_bad_weights(bad: list[dict[str, Any]]) -> list[str]:
    if not bad:
        return []
    lines = [f"{item['tensor']} {list(item['shape'])} {item['dtype']}: {item['reason']}" for item in bad[:SHOWN]]
    if len(bad) > SHOWN:
        lines.append(f"… and {len(bad) - SHOWN:,} more tensors: --json lists all")
    lines.extend(dict.fromkeys(item["hint"] for item in bad))
    return lines
