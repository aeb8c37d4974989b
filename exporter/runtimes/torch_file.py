"""What files that PyTorch runs have in common: the contract inside, and arrays in and out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..cases.plan import Array
from ..contracts.contract import Contract
from ..errors import BundleError, OptionError, first_line
from ..formats.torch_archive import AGAIN, EXTRA, read_record
from ..parity.weights import CONSTANT_LIMIT
from ..quiet import quiet

PREFIX = "model."  # of the weights' names: graph_modules wraps the model


def describe_file(contract: Contract, producer: str) -> dict[str, str]:
    """What a file says of itself, as ``extra_files``: ``mytx.json`` with its contract and what it was made by."""
    return {EXTRA: json.dumps({"producer": producer, "contract": contract.to_dict()}, indent=1)}


def contract_in(path: Path) -> Contract | None:
    """The contract that the file at ``path`` says it has; None where it says nothing.

    Raises:
        BundleError: where it cannot be read.
    """
    try:
        record = read_record(path, f"extra/{EXTRA}")
        return None if record is None else Contract.from_dict(json.loads(record)["contract"])
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{path} is damaged: its record extra/{EXTRA} holds no contract", AGAIN) from error


def opened(path: Path, check: Callable[[Path], None], read: Callable[[Path], Any]) -> Any:
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


class TorchRuntime:
    """A graph that PyTorch runs.

    Args:
        module: takes tensors by name.
        contract: what the file says of itself; without it nothing is known of dtypes and the outputs' names.
        lifted: the module computes in float64; floats that come in go there too.
    """

    def __init__(self, module: Callable[..., Any], contract: Contract | None, lifted: bool = False) -> None:
        self.module = module
        self.contract = contract
        self.lifted = lifted

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, for an array for each input; optional ones may be missing.

        Raises:
            OptionError: for an input of another dtype than the contract's.
            RuntimeError: with what PyTorch says, where the graph fails.
        """
        given = {name: self._argument(name, array) for name, array in inputs.items()}
        try:
            with torch.inference_mode():
                output = self.module(**given)
        except Exception as error:
            raise RuntimeError(_last_line(error)) from error
        outputs = [output] if isinstance(output, Tensor) else list(output)
        return {name: value.numpy() for name, value in zip(self.output_names(len(outputs)), outputs, strict=True)}

    def output_names(self, number: int) -> list[str]:
        """The outputs' names by the contract; numbered, where it does not have that many."""
        names = [spec.name for spec in self.contract.outputs] if self.contract else []
        return names if len(names) == number else [f"output {index}" for index in range(number)]

    def _argument(self, name: str, array: Array) -> Tensor | int | float:
        specs = self.contract.inputs if self.contract else ()
        spec = next((spec for spec in specs if spec.name == name), None)
        wanted = spec.dtype if spec else str(array.dtype)
        if str(array.dtype) != wanted:
            raise OptionError(f"{name} is {array.dtype}, the graph takes {wanted}", f"give it as {wanted}")
        if spec and spec.role == "number":
            number: int | float = array.item()
            return number
        tensor = torch.tensor(array)
        return tensor.double() if self.lifted and tensor.is_floating_point() else tensor


def state_dict_names(state: Mapping[str, Tensor]) -> dict[str, Array]:
    """Weights under the names that they have in the model."""
    return {name.removeprefix(PREFIX): tensor.detach().numpy() for name, tensor in state.items()}


def with_aliases(read: set[str], state: Mapping[str, Tensor]) -> set[str]:
    """``read``, and the names in ``state`` of the same tensors: of tied weights a graph may read one."""
    places = {state[name].data_ptr() for name in read if name in state}
    return read | {name for name, tensor in state.items() if tensor.data_ptr() in places}


def is_weight(constant: object) -> bool:
    """Whether a constant of a graph is as large as a weight, which belongs among the weights."""
    if isinstance(constant, Tensor):
        return constant.is_floating_point() and constant.numel() > CONSTANT_LIMIT
    if isinstance(constant, Sequence) and not isinstance(constant, str):
        floats = len(constant) > CONSTANT_LIMIT and all(isinstance(item, float) for item in constant)
        return floats or any(is_weight(item) for item in constant)
    return False


def _last_line(error: Exception) -> str:
    """What went wrong: TorchScript says it after a traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
