"""Writing and loading TorchScript files, for libtorch.

A graph is scripted, not traced: the file has no shapes of an example in it, and masks are optional. It is frozen, so
that the file contains only what its graph needs. Parameters stay parameters with their names, so that ``.to(...)``
works on the loaded module. PyTorch has deprecated TorchScript, but libtorch runs no other format everywhere.

Opening such a file runs a program: open only files from a source that you trust.
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

DEBUG = ".debug_pkl"  # source lines with paths of the machine that made the file; nothing needs them


def needs(graphs: Mapping[str, Graph], name: str) -> tuple[str, ...]:
    """The graphs whose files must be written before: none."""
    return ()


def export(graphs: Mapping[str, Graph], name: str, folder: Path, options: ExportOptions) -> None:
    """Write ``<name>.ts.pt`` to ``folder``, in evaluation mode. The model is not changed.

    Raises:
        ExportError: if TorchScript cannot compile the graph.
        OSError: if the file cannot be written.
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
        BundleError: if it is no TorchScript archive, or is damaged.
    """
    module: torch.jit.ScriptModule = open_checked(path, check_script, partial(torch.jit.load, map_location="cpu"))
    return module
