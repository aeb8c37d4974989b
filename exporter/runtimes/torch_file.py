"""The base class of runtimes in PyTorch: from arrays to tensors and back, by the contract in the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..cases.case import Array
from ..contracts.contract import Contract
from ..errors import OptionError


class TorchRuntime:
    """A graph that PyTorch runs.

    Args:
        module: a function that takes tensors by name.
        contract: the contract in the file; if None, dtypes are not checked, and outputs have numbers as names.
        lifted: whether the module computes in float64; inputs of floats are then converted to float64.
    """

    def __init__(self, module: Callable[..., Any], contract: Contract | None, lifted: bool = False) -> None:
        self.module = module
        self.contract = contract
        self.lifted = lifted

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, for an array for each input; optional ones may be missing.

        Raises:
            OptionError: for an input of another dtype than in the contract.
            RuntimeError: if the graph fails, with PyTorch's message.
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
        """The outputs' names in the contract; ``output 0`` and so on if the contract has not ``number`` outputs."""
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


def _last_line(error: Exception) -> str:
    """The last line of the message, or the type of the error: TorchScript puts a traceback before the reason."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
