"""The check of TorchScript and ``torch.export`` archives before PyTorch opens them, because opening them can run code.

``torch.export.load`` unpickles, imports, and turns text in the file into Python that it evaluates; ``torch.jit.load``
runs a program. So a file is opened only if it contains just what ``torch.export.save`` or ``torch.jit.save`` writes for
a model. That excludes planted Python code, but the program itself can still be malicious: open only files from a source
that you trust.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.export.pt2_archive import PT2ArchiveReader

from ..errors import BundleError, first_line
from .program_text import problem_of_program

EXTRA = "mytx.json"  # the record with the contract

_OURS = (r"version", r"byteorder", r"\.data/(version|serialization_id)", rf"extra/{re.escape(EXTRA)}")
SCRIPT_RECORDS = (*_OURS, r"data\.pkl", r"constants\.pkl", r"(data|constants)/\d+", r"code/[\w/]+\.py(\.debug_pkl)?")
SAMPLES = "data/sample_inputs/model.pt"
PROGRAM = "models/model.json"
CONFIGS = {"weight": "data/weights/model_weights_config.json", "tensor": "data/constants/model_constants_config.json"}
PROGRAM_RECORDS = (
    *_OURS,
    r"archive_(format|version)",
    *map(re.escape, (SAMPLES, PROGRAM, *CONFIGS.values())),
    r"data/weights/weight_\d+",
    r"data/constants/tensor_\d+",
)
# Records of an archive that torch.save writes: the sample inputs are one.
PICKLE_RECORDS = (r"version", r"byteorder", r"\.\w+", r"\.data/serialization_id", r"data\.pkl", r"data/\d+")
AGAIN = "copy or download it again"
OTHER = "give a file in the right format"
REFUSED = "do not open it in PyTorch either; export the model again"


def check_script(path: Path) -> None:
    """Check that the file at ``path`` is an archive that ``torch.jit.save`` wrote.

    TorchScript has its own unpickler, which only knows the types of TorchScript, so no record can run Python. The
    program itself can use all operators of PyTorch, and some of these read and write files.

    Raises:
        BundleError: if it is another file, is truncated, or contains a record that does not belong there.
    """
    names = _names(path)
    if not {"data.pkl", "constants.pkl"} <= set(names) or not any(name.endswith(".py") for name in names):
        raise BundleError(f"{path} is not a TorchScript archive, but {_kind(names)}", OTHER)
    _check_names(path, names, SCRIPT_RECORDS, "torch.jit.save")


def check_program(path: Path) -> None:
    """Check that the file at ``path`` is an archive that ``torch.export.save`` wrote, and contains no Python code.

    Allowed are the records of one program, pickles of tensors, the operators of ATen and arithmetic on sizes, and
    expressions of sums, products and comparisons.

    Raises:
        BundleError: if it is another file, is truncated, or contains anything else.
    """
    names = _names(path)
    if not {"archive_format", PROGRAM} <= set(names):
        raise BundleError(f"{path} is not a torch.export archive, but {_kind(names)}", OTHER)
    _check_names(path, names, PROGRAM_RECORDS, "torch.export.save")
    try:
        reader = PT2ArchiveReader(str(path))
        # In a crafted archive zipfile and PyTorch can see different files: the check would read other ones than load.
        same = sorted(reader.get_file_names()) == sorted(names)
        records = {name: reader.read_bytes(name) for name in (PROGRAM, SAMPLES, *CONFIGS.values()) if name in names}
    except Exception as error:  # a damaged archive can make the reader raise anything
        raise BundleError(f"{path} is truncated or damaged: {first_line(error)}", AGAIN) from error
    if not same:
        raise BundleError(f"{path} is two archives in one", REFUSED)
    for name in (PROGRAM, SAMPLES, *CONFIGS.values()):
        if name not in records:
            raise BundleError(f"{path} is incomplete: it has no {name}", AGAIN)
    for kind, name in CONFIGS.items():
        _check_config(path, name, _parse(path, name, records[name]), f"data/{name.split('/')[1]}/", kind, names)
    _check_pickle(path, SAMPLES, records[SAMPLES])
    problem = problem_of_program(_parse(path, PROGRAM, records[PROGRAM]))
    if problem:
        _refuse(path, PROGRAM, problem)


def read_record(path: Path, record: str) -> bytes | None:
    """A record of the archive at ``path``; None if there is none with that name."""
    with zipfile.ZipFile(path) as archive:
        name = archive.namelist()[0].split("/")[0] + "/" + record
        return archive.read(name) if name in archive.namelist() else None


# --- the steps -------------------------------------------------------------------------------------------------------


def _refuse(path: Path, record: str, problem: str) -> NoReturn:
    raise BundleError(f"{path} refused: its record {record} {problem}", REFUSED)


def _names(path: Path) -> list[str]:
    """The names of the records, without the folder that contains all of them."""
    try:
        with zipfile.ZipFile(path) as archive:
            whole = archive.namelist()
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or first_line(error)}", "name a file") from error
    except Exception as error:
        raise BundleError(f"{path} is not an archive of PyTorch, or is truncated", AGAIN) from error
    root = whole[0].split("/")[0] + "/" if whole else ""
    if not all(name.startswith(root) for name in whole):
        return whole  # not written by PyTorch: its archives have one folder
    names = [name.removeprefix(root) for name in whole]
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:  # PyTorch's reader ignores case
            _refuse(path, repr(name), "stands there twice")
        seen.add(name.lower())
    return names


def _kind(names: Iterable[str]) -> str:
    """What kind of archive it is, in words."""
    names = set(names)
    if "constants.pkl" in names:
        return "a TorchScript archive"
    if PROGRAM in names:
        return "a torch.export archive"
    return "what torch.save writes: weights without a graph" if "data.pkl" in names else "another zip archive"


def _check_names(path: Path, names: Iterable[str], allowed: Iterable[str], writer: str) -> None:
    pattern = re.compile("|".join(allowed), re.ASCII)
    for name in names:
        if not pattern.fullmatch(name):
            _refuse(path, repr(name), f"is not one that {writer} writes for a model")


def _parse(path: Path, record: str, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is damaged: its record {record} is not JSON", AGAIN) from error


def _check_config(path: Path, record: str, config: Any, folder: str, kind: str, names: Iterable[str]) -> None:
    """Check that each weight is a record of raw numbers, not a pickle."""
    entries = config.get("config") if isinstance(config, dict) else None
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise BundleError(f"{path} is damaged: its record {record} lists no weights", AGAIN)
    for name, entry in entries.items():
        place = entry.get("path_name")
        if entry.get("use_pickle") is not False:
            _refuse(path, record, f"says that {name!r} is a pickle, which could run code")
        if not isinstance(place, str) or not re.fullmatch(rf"{kind}_\d+", place, re.ASCII):
            _refuse(path, record, f"puts {name!r} at {place!r}, where no weight can be")
        if folder + place not in names:
            raise BundleError(f"{path} is incomplete: it has no {folder}{place}", AGAIN)


def _check_pickle(path: Path, record: str, content: bytes) -> None:
    """Check that the record is an archive of ``torch.save`` that contains only tensors in containers."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            inner = [name.partition("/")[2] for name in archive.namelist()]
    except Exception as error:
        raise BundleError(f"{path} refused: its record {record} is not what torch.save writes", REFUSED) from error
    pattern = re.compile("|".join(PICKLE_RECORDS), re.ASCII)
    for name in inner:
        if not pattern.fullmatch(name):
            _refuse(path, record, f"holds {name!r}, which torch.save does not write")
    try:
        torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception as error:
        wanted = re.search(r"GLOBAL ([\w.]+)", str(error))
        problem = f"asks to run {wanted[1]}" if wanted else f"cannot be read as tensors: {first_line(error)}"
        raise BundleError(f"{path} refused: its record {record} {problem}", REFUSED) from error
