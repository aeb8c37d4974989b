"""Contracts: the names, dtypes, dimensions and meaning of a graph's inputs and outputs.

``contract`` defines the types; the functions in ``declare`` write contracts for your own model, and this package
exports them. It imports no torch, no numpy, and nothing of mytx but its errors.

A contract file is a Python file with a list ``GRAPHS``, or with a function ``graphs(model)`` that returns one::

    from mytx.exporter.contracts import attention, graph, ids, values

    GRAPHS = [
        graph(
            "encoder",
            "encode",  # a method or a submodule of the model; "forward" is the model itself
            [ids("src", ["source", "batch"], below=50), attention("src_mask", ["source", "source"])],
            [values("memory", ["source", "batch", 64])],
        ),
    ]

A dimension is a name if its length varies, and a number if not. Dimensions with the same name have the same length.
``batch`` is the number of sentences: the result of a sentence must not depend on the others. Inputs are passed to the
method as keyword arguments.
"""

from .declare import CustomGraph, attention, graph, ids, keep, padding, values

__all__ = ["CustomGraph", "attention", "graph", "ids", "keep", "padding", "values"]
