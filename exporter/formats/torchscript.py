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

import torch

from ..errors import ExportError, first_line
from ..graphs.graph import Graph
from .table import FORMATS, ExportOptions
from .torch_archive import check_script
from .torch_files import PREFIX, describe_file, open_checked

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


def load(path: Path) -> torch.jit.ScriptModule:
    """The module in the file at ``path``, on the CPU.

    Raises:
        BundleError: where it is no TorchScript, or is damaged.
    """
    module: torch.jit.ScriptModule = open_checked(path, check_script, partial(torch.jit.load, map_location="cpu"))
    return module
