"""What a graph takes and gives: names, dtypes, dimensions, meaning.

``contract`` has the types. ``declare`` makes contracts for models of one's own, and is what this package shows to
users. No torch and no numpy here; imports nothing of mytx but its errors.

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
