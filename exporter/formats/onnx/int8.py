"""ONNX files with integer products, made of the float32 ones: dynamic int8, by standard operators only.

Each product with a matrix of the model becomes ``DynamicQuantizeLinear`` and ``MatMulInteger``, which onnxruntime fuses
into one kernel, in the bodies of loops too; what looks up rows of a matrix looks up their integers and scales. onnx's
and onnxruntime's own tools leave out subgraphs, where a search has its products, and matrices that are fused in the
graph; and their scales are not exact factors (see :mod:`mytx.exporter.formats.quantisation`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from ...graphs.graph import Graph
from ..quantisation import SCALE, is_matrix, limit_of, quantise
from ..table import FORMATS, ExportOptions
from .export import finish, save

INT8 = FORMATS["int8"]
FLOAT = ir.DataType.FLOAT


def needs(graphs: Mapping[str, Graph], name: str) -> tuple[str, ...]:
    """No other graph in int8: each file is made of the same graph in float32."""
    return ()


def export(graphs: Mapping[str, Graph], name: str, folder: Path, options: ExportOptions) -> None:
    """Write ``<name>.int8.onnx`` to ``folder``, made of ``<name>.onnx`` there.

    Raises:
        ExportError: where a weight has a value that is not finite, or the file would be too large.
        OSError: where it cannot be written.
    """
    model = ir.load(folder / FORMATS[INT8.made_of].file(name))
    matrices = {key for key, tensor in graphs[name].weights().items() if is_matrix(tensor.shape)}
    to_integers(model, matrices, graphs[name].looked_up())
    finish(model, graphs[name].contract, {"mytx.version": options.producer, "mytx.precision": INT8.precision})
    save(model, folder / INT8.file(name), INT8.weights)


def to_integers(model: ir.Model, matrices: Collection[str], looked_up: Collection[str] = ()) -> None:
    """Replace the initializers called ``matrices`` by integers and scales, and change what reads them, in place.

    Args:
        model: changed in place.
        matrices: names of initializers.
        looked_up: those of them that are in no product.

    Raises:
        ExportError: where a weight has a value that is not finite.
    """
    rewriter = _Rewriter(looked_up)
    for graph in model.graphs():
        for name in [name for name in graph.initializers if name in matrices]:  # in their order, which sets have not
            rewriter.take(graph, name)
    for node in [node for graph in list(model.graphs()) for node in graph]:
        rewriter.rewrite(node)
    rewriter.keep_floats()
    passes.RemoveUnusedNodesPass()(model)


@dataclass(frozen=True)
class _Rows:
    """Integers ``[R, …]`` and their scales ``[R, 1, …]``."""

    integers: ir.Value
    scales: ir.Value


class _Rewriter:
    """Replaces nodes that read matrices by nodes that read their integers."""

    def __init__(self, looked_up: Collection[str]) -> None:
        self._looked_up = looked_up
        self._taken: dict[ir.Value, _Rows] = {}  # by the float initializers, which are in no graph any more
        self._made: dict[ir.Value, _Rows | None] = {}  # by what is computed of them
        self._activations: dict[tuple[ir.Graph, ir.Value], Sequence[ir.Value]] = {}
        self._names = Counter[str]()

    def take(self, graph: ir.Graph, name: str) -> None:
        """Put the integers and scales of an initializer in its place."""
        value = graph.initializers.pop(name)
        assert value.const_value is not None
        quantised = quantise(name, value.const_value.numpy(), limit_of(name, self._looked_up))
        rows = [
            ir.Value(name=key, const_value=ir.tensor(array, name=key))
            for key, array in ((name, quantised.values), (name + SCALE, quantised.scales))
        ]
        for row in rows:
            graph.register_initializer(row)
        self._taken[value] = _Rows(*rows)

    def rewrite(self, node: ir.Node) -> None:
        """Replace ``node`` if it multiplies by a matrix, or looks up rows of one."""
        if node.op_type in ("MatMul", "Gemm"):
            rows = self._rows_of_product(node)
            if rows is not None:
                self._replace(node, self._product(node, rows))
        elif node.op_type in ("Gather", "Slice") and node.inputs[0] in self._taken and _along_rows(node):
            rows = self._taken[node.inputs[0]]
            found = [
                self._node(node, node.op_type, part, *node.inputs[1:], **_attributes(node))
                for part in (rows.integers, rows.scales)
            ]
            self._replace(node, self._floats(node, *found))

    def keep_floats(self) -> None:
        """Where a matrix is read in another way, compute it of its integers; runtimes do so when they load the file."""
        for value, rows in self._taken.items():
            for use in list(value.uses()):
                use.node.replace_input_with(use.idx, self._floats(use.node, rows.integers, rows.scales))

    # --- matrices ----------------------------------------------------------------------------------------------------

    def _rows_of_product(self, node: ir.Node) -> _Rows | None:
        """The matrix of a product, with a row for each output; None where the right side is none."""
        numbers = {name: attribute.value for name, attribute in node.attributes.items()}
        if node.op_type == "Gemm" and (
            numbers.get("transA") or {numbers.get("alpha", 1), numbers.get("beta", 1)} != {1}
        ):
            return None
        matrix = node.inputs[1]
        if not numbers.get("transB"):  # the matrix itself has a column for each output
            turned = matrix.producer() if matrix is not None else None
            if turned is None or turned.op_type != "Transpose":
                return None
            matrix = turned.inputs[0]
        return self._rows(matrix)

    def _rows(self, value: ir.Value | None) -> _Rows | None:
        """What ``value`` is in integers: a matrix of the model, one times a number, or several one below the other."""
        if value is None or value.name in self._looked_up:  # whose integers may be too large for a product
            return None
        if value in self._taken:
            return self._taken[value]
        if value not in self._made:
            self._made[value] = self._computed(value.producer())
        return self._made[value]

    def _computed(self, node: ir.Node | None) -> _Rows | None:
        if node is not None and node.op_type == "Concat" and node.attributes["axis"].value == 0:
            parts = [self._rows(value) for value in node.inputs]
            known = [part for part in parts if part is not None]
            if len(known) < len(parts):
                return None
            if len(known) == 1:
                return known[0]
            return _Rows(
                self._node(node, "Concat", *(part.integers for part in known), axis=0),
                self._node(node, "Concat", *(part.scales for part in known), axis=0),
            )
        if node is not None and node.op_type == "Mul":
            for matrix, factor in (node.inputs, node.inputs[::-1]):
                number = ir.convenience.get_const_tensor(factor) if factor is not None else None
                rows = self._rows(matrix) if number is not None and number.size == 1 else None
                if rows is not None:
                    return _Rows(rows.integers, self._node(node, "Mul", rows.scales, factor))
        return None

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _product(self, node: ir.Node, rows: _Rows) -> ir.Value:
        """``x @ matrix.T``, and what a ``Gemm`` adds."""
        x, bias = node.inputs[0], (*node.inputs, None)[2]
        assert x is not None
        assert node.graph is not None
        known = (node.graph, x)
        if known not in self._activations:
            self._activations[known] = self._nodes(node, 3, "DynamicQuantizeLinear", x)
        integers, scale, zero = self._activations[known]
        matrix = self._node(node, "Transpose", rows.integers, perm=[1, 0])
        total = self._node(node, "Cast", self._node(node, "MatMulInteger", integers, matrix, zero), to=FLOAT)
        scales = self._node(node, "Mul", scale, self._node(node, "Reshape", rows.scales, self._constant(node, [-1])))
        product = self._node(node, "Mul", total, scales)
        return product if bias is None else self._node(node, "Add", product, bias)

    def _floats(self, node: ir.Node, integers: ir.Value, scales: ir.Value) -> ir.Value:
        return self._node(node, "Mul", self._node(node, "Cast", integers, to=FLOAT), scales)

    def _constant(self, node: ir.Node, numbers: Sequence[int]) -> ir.Value:
        return self._node(node, "Constant", value=ir.tensor(np.array(numbers)))

    def _node(self, before: ir.Node, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        return self._nodes(before, 1, op_type, *inputs, **attributes)[0]

    def _nodes(
        self, before: ir.Node, count: int, op_type: str, *inputs: ir.Value | None, **attributes: Any
    ) -> Sequence[ir.Value]:
        """The outputs of a new node in front of another, whose name it has in its own."""
        name = f"{before.name}/{op_type}"
        self._names[name] += 1
        name += f"_{self._names[name]}"
        node = ir.node(op_type, inputs, attributes or None, num_outputs=count, name=name)
        for index, value in enumerate(node.outputs):
            value.name = f"{name}:{index}"
        assert before.graph is not None
        before.graph.insert_before(before, [node])
        return node.outputs

    def _replace(self, node: ir.Node, value: ir.Value) -> None:
        """Put ``value`` in the place of the output of ``node``; the file knows it by the name that this had."""
        assert node.graph is not None
        ir.convenience.replace_nodes_and_values(node.graph, node, [node], [], [node.outputs[0]], [value])


def _along_rows(node: ir.Node) -> bool:
    """Whether what it takes of a matrix are whole rows."""
    if node.op_type == "Gather":
        return "axis" not in node.attributes or node.attributes["axis"].value == 0
    axes = ir.convenience.get_const_tensor(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] else None
    return axes is not None and axes.numpy().tolist() == [0]


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {name: attribute.value for name, attribute in node.attributes.items()}
