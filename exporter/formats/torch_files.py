"""What TorchScript and ``torch.export`` files have in common: the contract in the file, and opening after a check."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..contracts.contract import Contract
from ..errors import BundleError, first_line
from ..quiet import quiet
from .torch_archive import AGAIN, EXTRA, read_record

PREFIX = "model."  # of the weights' names: GraphModule holds the model as ``model``


def describe_file(contract: Contract, producer: str) -> dict[str, str]:
    """The ``extra_files`` of a file: ``mytx.json`` with the contract and the program that wrote it."""
    return {EXTRA: json.dumps({"producer": producer, "contract": contract.to_dict()}, indent=1)}


def stored_contract(path: Path) -> Contract | None:
    """The contract in the file at ``path``; None if it has none.

    Raises:
        BundleError: if the contract cannot be read.
    """
    try:
        record = read_record(path, f"extra/{EXTRA}")
        return None if record is None else Contract.from_dict(json.loads(record)["contract"])
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{path} is damaged: its record extra/{EXTRA} holds no contract", AGAIN) from error


def open_checked(path: Path, check: Callable[[Path], None], read: Callable[[Path], Any]) -> Any:
    """The result of ``read(path)``, after ``check(path)``.

    Raises:
        BundleError: if ``check`` raises it, or the file is damaged.
    """
    check(path)
    try:
        with quiet():
            return read(path)
    except Exception as error:  # a damaged file can make the reader raise anything
        raise BundleError(f"{path} is damaged: {first_line(error)}", AGAIN) from error
