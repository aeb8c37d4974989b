"""Graphs to TorchScript, for libtorch, and the check of such files: the only home of ``torch.jit``.

A graph is scripted, not traced: nothing of the example's shape is in the file, and masks can be left out. It is
frozen, so that a file holds what its graph needs; parameters stay parameters under their names, so that ``.to(...)``
works on the loaded module. TorchScript is deprecated in PyTorch, and still the only format that libtorch runs
everywhere.

To open a file is to run a program: open those that come from a source that you trust.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..cases.plan import Array
from ..errors import ExportError, first_line
from ..graphs.graph import Graph
from ..parity.report import Finding
from ..parity.verify import Run, small
from ..parity.weights import compare_weights, weight_findings
from ..runtimes.runtime import Description
from ..runtimes.torch_file import (
    PREFIX,
    TorchRuntime,
    contract_in,
    describe_file,
    is_weight,
    opened,
    state_dict_names,
    with_aliases,
)
from .table import FORMATS, ExportOptions
from .torch_archive import check_script

# Source lines with the paths of the machine that the file was made on; nothing needs them.
DEBUG = ".debug_pkl"


def needs(graphs: Mapping[str, Graph], name: str) -> tuple[str, ...]:
    """No graph is made of another."""
    return ()


def export(graphs: Mapping[str, Graph], name: str, folder: Path, options: ExportOptions) -> None:
    """Write ``<name>.ts.pt`` to ``folder``, in evaluation mode. The model stays as it is.

    Raises:
        ExportError: where TorchScript cannot take the graph.
        OSError: where the file cannot be written.
    """
    graph = graphs[name]
    file = FORMATS["torchscript"].file(name)
    try:
        module = graph.scripted() if graph.scripted else graph.module
        kept = list(module.state_dict()) if graph.scripted else [PREFIX + weight for weight in graph.weights()]
        scripted = torch.jit.script(module).eval()
        frozen = torch.jit.freeze(scripted, preserved_attrs=kept, optimize_numerics=False)
    except Exception as error:
        raise ExportError(
            f"TorchScript cannot take the {name} graph: {first_line(error)}", "run again with -v for the whole story"
        ) from error
    with tempfile.TemporaryDirectory(dir=folder) as unfinished:
        whole = Path(unfinished) / file
        torch.jit.save(frozen, str(whole), _extra_files=describe_file(graph.flexible, options.producer))
        _copy_without_debug(whole, folder / file)


def _copy_without_debug(source: Path, target: Path) -> None:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            if not info.filename.endswith(DEBUG):
                copied = zipfile.ZipInfo(info.filename, info.date_time)
                copied.compress_type = info.compress_type
                new.writestr(copied, old.read(info))


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
        module = load(Path(path))
        return cls(module.double() if lifted else module, contract_in(Path(path)), lifted)

    def describe(self) -> Description:
        """PyTorch, its version, and the names of the arguments and results; TorchScript knows no more of them."""
        schema = self.module.forward.schema  # type: ignore[attr-defined]
        unknown: tuple[str, tuple[str | int, ...]] = ("", ())
        inputs = {argument.name: unknown for argument in schema.arguments if argument.name != "self"}
        (result,) = schema.returns
        several = result.type.elements() if result.type.kind() == "TupleType" else [result.type]
        outputs = dict.fromkeys(self.output_names(len(several)), unknown)
        return Description("TorchScript, float64" if self.lifted else "TorchScript", torch.__version__, inputs, outputs)


def load(path: Path) -> torch.jit.ScriptModule:
    """The module in the file at ``path``, on the CPU.

    Raises:
        BundleError: where it is no TorchScript, or is damaged.
    """
    module: torch.jit.ScriptModule = opened(path, check_script, partial(torch.jit.load, map_location="cpu"))
    return module


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


def find_weights(path: Path, weights: Mapping[str, Array]) -> list[Finding]:
    """What is wrong with the weights of the file: check 1."""
    return weight_findings(path, lambda: _weight_problems(load(path), weights))


def _weight_problems(module: torch.jit.ScriptModule, weights: Mapping[str, Array]) -> list[str]:
    state = module.state_dict()
    graph: Any = module.inlined_graph
    read = with_aliases({_name(node) for node in graph.findAllNodes("prim::GetAttr") if _is_read(node)}, state)
    problems = compare_weights(state_dict_names(state), {name.removeprefix(PREFIX) for name in read}, weights)
    if any(is_weight(node.output().toIValue()) for node in graph.findAllNodes("prim::Constant")):
        problems.append("the graph holds a constant of the size of a weight, but the model has no such weight")
    return problems


def _is_read(node: Any) -> bool:
    """Whether a node that gets an attribute gets a tensor, for others."""
    return node.output().type().kind() == "TensorType" and len(node.output().uses()) > 0


def _name(node: Any) -> str:
    """The state-dict name of what a node gets: the attribute's, after those that lead to its module."""
    names = []
    while node.kind() == "prim::GetAttr":
        names.append(node.s("name"))
        node = node.input().node()
    return ".".join(reversed(names))
