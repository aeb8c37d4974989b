"""What a graph takes and gives. This page is the public face: contracts for ``mytx-export onnx --model``.

A contract is a Python file with a list ``GRAPHS``, or a function ``graphs(model)`` that gives one::

    from mytx.exporter.contracts import attention, graph, ids, values

    GRAPHS = [
        graph(
            "encoder",
            "encode",  # a method or a submodule of the model; "forward" is the model itself
            [ids("src", ["source", "batch"], below=50), attention("src_mask", ["source", "source"])],
            [values("memory", ["source", "batch", 64])],
        ),
    ]

Dimensions are names, for lengths that vary, or numbers. Equal names are equal lengths, and ``batch`` is the number of
sentences: each of them must come out as it does alone. Inputs are arguments by name.
"""

from .declare import CustomGraph, attention, graph, ids, keep, padding, values

__all__ = ["CustomGraph", "attention", "graph", "ids", "keep", "padding", "values"]
