"""The ONNX files of a bundle: each graph exported, or made of the files that are there already."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import onnx_ir as ir

from ...graphs.graph import Graph
from ..table import ExportOptions
from .compose import compose_full, prefill_model, search_model
from .export import finish, name_weights, save, to_onnx


def needs(graphs: Mapping[str, Graph], name: str) -> tuple[str, ...]:
    """The graphs whose files a graph is made of, if the model has them: most of the time goes into exporting."""
    parts = graphs[name].contract.made_of
    return parts if set(parts) <= set(graphs) else ()


def export(graphs: Mapping[str, Graph], name: str, folder: Path, options: ExportOptions) -> None:
    """Write ``<name>.onnx`` to ``folder``; files that it is made of and that are there already are used.

    Raises:
        ExportError: where a graph cannot be exported.
        OSError: where the file cannot be written.
    """
    model = made(graphs, name, partial(_part, graphs, folder, options.opset), options.opset)
    finish(model, graphs[name].contract, {"mytx.version": options.producer})
    save(model, folder / f"{name}.onnx")


def made(graphs: Mapping[str, Graph], name: str, part: Callable[[str], ir.Model], opset: int) -> ir.Model:
    """The graph ``name``: exported, or made of what ``part`` gives for each graph that it needs.

    Raises:
        ExportError: where a graph cannot be exported.
    """
    needed = needs(graphs, name)
    if not needed:
        return to_onnx(graphs[name], opset)
    first, second = map(part, needed)
    if name == "full":
        return compose_full(first, second, graphs[name].contract)
    if name == "prefill":
        return prefill_model(graphs, first, second, opset)
    return search_model(graphs, first, second, beams=name == "generate")


def _part(graphs: Mapping[str, Graph], folder: Path, opset: int, name: str) -> ir.Model:
    path = folder / f"{name}.onnx"
    if not path.exists():
        return made(graphs, name, partial(_part, graphs, folder, opset), opset)
    model = ir.load(path)
    name_weights(model, graphs[name].weights())
    return model
