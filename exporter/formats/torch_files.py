"""What files of PyTorch have in common: the contract inside, and a check before they are opened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..contracts.contract import Contract
from ..errors import BundleError, first_line
from ..quiet import quiet
from .torch_archive import AGAIN, EXTRA, read_record

PREFIX = "model."  # of the weights' names: graph_modules wraps the model


def describe_file(contract: Contract, producer: str) -> dict[str, str]:
    """What a file says of itself, as ``extra_files``: ``mytx.json`` with its contract and what it was made by."""
    return {EXTRA: json.dumps({"producer": producer, "contract": contract.to_dict()}, indent=1)}


def stored_contract(path: Path) -> Contract | None:
    """The contract that the file at ``path`` says it has; None where it says nothing.

    Raises:
        BundleError: where it cannot be read.
    """
    try:
        record = read_record(path, f"extra/{EXTRA}")
        return None if record is None else Contract.from_dict(json.loads(record)["contract"])
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{path} is damaged: its record extra/{EXTRA} holds no contract", AGAIN) from error


def open_checked(path: Path, check: Callable[[Path], None], read: Callable[[Path], Any]) -> Any:
    """What ``read`` makes of the file at ``path``, which has passed ``check``.

    Raises:
        BundleError: as ``check``, and where the file is damaged.
    """
    check(path)
    try:
        with quiet():
            return read(path)
    except Exception as error:  # what a damaged file makes of the reader is not to be foreseen
        raise BundleError(f"{path} is damaged: {first_line(error)}", AGAIN) from error
