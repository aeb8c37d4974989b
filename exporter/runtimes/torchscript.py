"""Running TorchScript files in PyTorch. Opening one runs a program: open only files from sources you trust."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from ..cases.case import small
from ..formats import torchscript
from ..formats.torch_archive import check_script
from ..formats.torch_files import stored_contract
from .run import Run
from .runtime import Description
from .torch_file import TorchRuntime


class TorchScript(TorchRuntime):
    """A graph, open in TorchScript."""

    @classmethod
    def open(cls, path: str | Path, *, lifted: bool = False) -> TorchScript:
        """Load the file at ``path``, which must come from a source that you trust.

        Args:
            path: the file.
            lifted: compute in float64.

        Raises:
            BundleError: if it is no TorchScript archive, or is damaged.
        """
        module = torchscript.load(Path(path))
        return cls(module.double() if lifted else module, stored_contract(Path(path)), lifted)

    def describe(self) -> Description:
        """PyTorch, its version, and the names of inputs and outputs. TorchScript stores no dtypes or dimensions."""
        schema = self.module.forward.schema  # type: ignore[attr-defined]
        unknown: tuple[str, tuple[str | int, ...]] = ("", ())
        inputs = {argument.name: unknown for argument in schema.arguments if argument.name != "self"}
        (result,) = schema.returns
        several = result.type.elements() if result.type.kind() == "TupleType" else [result.type]
        outputs = dict.fromkeys(self.output_names(len(several)), unknown)
        return Description("TorchScript, float64" if self.lifted else "TorchScript", torch.__version__, inputs, outputs)


def check(path: Path) -> None:
    """Check a file before it is opened; raise ``BundleError`` if it is no such archive, or contains Python code."""
    check_script(path)


def runs(verbose: bool = False) -> list[Run]:
    """The ways to run a file. The last one, lifted to float64, is the check of structure."""
    lifted = partial(TorchScript.open, lifted=True)
    return [
        Run("TorchScript", TorchScript.open, dimensions=False),
        Run("TorchScript, float64", lifted, takes=small, lifted=True, dimensions=False),
    ]
