"""Reads the objects in a file. Code in a file never runs: pickles are loaded with ``weights_only=True``."""

from __future__ import annotations

import pickle
import pickletools
import re
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from ..errors import CheckpointError

HOW_TO_SAVE = 'where it was written, save the weights alone: torch.save(model.state_dict(), "weights.pt")'
CHUNK = 1 << 20

# The names in a state dict that torch.save pickled. Weights need no others.
HARMLESS = re.compile(r"collections\.OrderedDict|torch\._utils\._rebuild_\w+|torch\.\w*(Storage|Size|device)")


def read_file(path: Path) -> Any:
    """The content of ``path``, a ``.safetensors`` file or a file of ``torch.save``, with all tensors on the CPU.

    Zip archives are memory-mapped: a tensor is read when it is used.

    Raises:
        CheckpointError: if the file is missing, empty, damaged or of another kind, or if its pickle would run code.
    """
    if not path.exists():
        raise CheckpointError(f"{path}: no such file", "check the path to the checkpoint")
    if not path.is_file():  # reading a pipe would wait for data
        raise CheckpointError(f"{path} is not a regular file", "check the path to the checkpoint")
    try:
        with path.open("rb") as file:
            start = file.read(32)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}", "check the path and its permissions"
        ) from error
    if not start:
        raise CheckpointError(f"{path} is empty", "copy or download it again")
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        return read_safetensors(path)
    if start.startswith(b"PK\x03\x04"):
        return read_archive(path)
    if start.startswith(b"\x80"):
        return unpickle(path, mapped=False)
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointError(f"{path} is a Git LFS pointer, not the file itself", "git lfs pull")
    raise CheckpointError(f"{path} is not a PyTorch checkpoint", "give a .pt, .pth, .pkl or .safetensors file")


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file.

    Raises:
        CheckpointError: if it is damaged, truncated or of another kind.
    """
    try:
        return load_file(str(path))
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not a readable safetensors file, or is truncated: {one_line(error)}",
            "copy or download it again",
        ) from error


def read_archive(path: Path) -> Any:
    """The contents of a zip archive that ``torch.save`` wrote.

    Raises:
        CheckpointError: if it is truncated, has a wrong checksum, or is an archive of another kind.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if any(name.endswith("/constants.pkl") for name in names):
                raise CheckpointError(
                    f"{path} is a TorchScript archive, not a state dict",
                    'save its weights: torch.save(torch.jit.load(path).state_dict(), "weights.pt")',
                )
            if not any(name.endswith("/data.pkl") for name in names):
                raise CheckpointError(f"{path} is a zip archive, but not one that torch.save wrote", HOW_TO_SAVE)
            for info in archive.infolist():
                if info.CRC:  # 0 if torch.save did not compute it
                    with archive.open(info) as record:
                        while record.read(CHUNK):
                            pass
            stored = all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
    except CheckpointError:
        raise
    except Exception as error:  # a damaged archive can raise any class of error
        raise CheckpointError(
            f"{path} is truncated or damaged: {one_line(error)}", "copy or download it again"
        ) from error
    return unpickle(path, mapped=stored)


def unpickle(path: Path, mapped: bool) -> Any:
    """``torch.load`` that never runs code from the file. If ``mapped``, tensors stay in the file until they are used.

    Raises:
        CheckpointError: if the pickle is damaged, or would run code; the message names what it would run.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about protocols and formats; problems raise errors
            return torch.load(path, weights_only=True, map_location="cpu", mmap=mapped)
    except pickle.UnpicklingError as error:
        wanted = wanted_global(path, str(error))
        if wanted:
            raise CheckpointError(
                f"{path} refused: its pickle asks to run {wanted}, and code from a file is never run", HOW_TO_SAVE
            ) from error
        raise CheckpointError(
            f"{path} is a pickle, but not one of tensors that torch.save wrote", HOW_TO_SAVE
        ) from error
    except Exception as error:  # as above
        raise CheckpointError(
            f"{path} is truncated, damaged or not a PyTorch checkpoint: {one_line(error)}", "copy or download it again"
        ) from error


def wanted_global(path: Path, refusal: str) -> str:
    """The name in the pickle of ``path`` that ``torch.load`` refused with this message; empty if there is none."""
    named = re.search(r"GLOBAL (\S+)", refusal)
    if named:
        return named.group(1)
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            return first_global(file)
    with zipfile.ZipFile(path) as archive:
        record = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        with archive.open(record) as file:
            return first_global(file)


def first_global(file: IO[bytes]) -> str:
    """The first name that a pickle would import and that weights do not need. The pickle is read, not run."""
    strings: list[str] = []
    memo: dict[int, str] = {}
    try:
        for opcode, argument, _ in pickletools.genops(file):
            name = ""
            if opcode.name == "GLOBAL":
                name = str(argument).replace(" ", ".")
            elif opcode.name == "STACK_GLOBAL":
                name = ".".join(strings[-2:])
            elif "UNICODE" in opcode.name:
                strings.append(str(argument))
            elif opcode.name == "MEMOIZE":
                memo[len(memo)] = strings[-1] if strings else ""
            elif opcode.name in ("BINGET", "LONG_BINGET"):
                strings.append(memo.get(int(argument or 0), ""))
            if name and not HARMLESS.fullmatch(name):
                return name
    except (ValueError, EOFError):  # not a pickle, or one that ends early
        pass
    return ""


def one_line(error: object) -> str:
    """The message of ``error`` in one line, up to its first full stop and at most 160 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.split(". ")[0].rstrip(".")[:160]
