"""TorchScript files in PyTorch. To open one is to run a program: open those that come from a source that you trust."""

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
        """Load the file at ``path``, which is to come from a source that you trust.

        Args:
            path: the file.
            lifted: let it compute in float64.

        Raises:
            BundleError: where it is no TorchScript, or is damaged.
        """
        module = torchscript.load(Path(path))
        return cls(module.double() if lifted else module, stored_contract(Path(path)), lifted)

    def describe(self) -> Description:
        """PyTorch, its version, and the names of the arguments and results; TorchScript knows no more of them."""
        schema = self.module.forward.schema  # type: ignore[attr-defined]
        unknown: tuple[str, tuple[str | int, ...]] = ("", ())
        inputs = {argument.name: unknown for argument in schema.arguments if argument.name != "self"}
        (result,) = schema.returns
        several = result.type.elements() if result.type.kind() == "TupleType" else [result.type]
        outputs = dict.fromkeys(self.output_names(len(several)), unknown)
        return Description("TorchScript, float64" if self.lifted else "TorchScript", torch.__version__, inputs, outputs)


def check(path: Path) -> None:
    """Raise ``BundleError`` for a file that is no such file, or would run code when it is opened."""
    check_script(path)


def runs(verbose: bool = False) -> list[Run]:
    """The ways to run a file; the last one, lifted to float64, is the check of structure."""
    lifted = partial(TorchScript.open, lifted=True)
    return [
        Run("TorchScript", TorchScript.open, dimensions=False),
        Run("TorchScript, float64", lifted, takes=small, lifted=True, dimensions=False),
    ]
