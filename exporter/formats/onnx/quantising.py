"""ONNX files with quantised weights, made of the float32 ones: what int8 and int4 have in common.

Each product with a matrix of the model becomes one with its integers, in the bodies of loops too; what looks up rows of
a matrix looks up rows of integers. onnx's and onnxruntime's own tools leave out subgraphs, where a search has its
products, and matrices that are fused in the graph; and their scales are not exact factors (see
:mod:`mytx.exporter.formats.quantisation`).
"""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from ...graphs.graph import Graph
from ..quantisation import SCALE, Rule, quantise, rule_of
from ..table import FORMATS, ExportOptions, Format
from .export import finish, save


def export_quantised(
    known: Format,
    rewriter: type[Rewriter],
    graphs: Mapping[str, Graph],
    name: str,
    folder: Path,
    options: ExportOptions,
) -> None:
    """Write the file of a graph in the format ``known`` to ``folder``, made of the float32 one there.

    Raises:
        ExportError: where a weight has a value that is not finite, or the file would be too large.
        OSError: where it cannot be written.
    """
    model = ir.load(folder / FORMATS[known.made_of].file(name))
    graph = graphs[name]
    rule = rule_of(known, options.kept)
    matrices = {key for key, tensor in graph.weights().items() if rule.takes(key, tensor.shape)}
    to_integers(model, rewriter(graph.looked_up()), matrices)
    finish(model, graph.contract, {"mytx.version": options.producer, "mytx.precision": known.precision})
    save(model, folder / known.file(name), known.weights)


def to_integers(model: ir.Model, rewriter: Rewriter, matrices: Collection[str]) -> None:
    """Replace the initializers called ``matrices`` by integers and scales, and change what reads them, in place.

    Raises:
        ExportError: where a weight has a value that is not finite.
    """
    for graph in model.graphs():
        for name in [name for name in graph.initializers if name in matrices]:  # in their order, which sets have not
            rewriter.take(graph, name)
    for node in [node for graph in list(model.graphs()) for node in graph]:
        rewriter.rewrite(node)
    rewriter.keep_floats()
    model.opset_imports.update(rewriter.opsets)
    passes.RemoveUnusedNodesPass()(model)


@dataclass(frozen=True)
class Rows:
    """A matrix of shape ``[R, …]`` in integers: what :class:`~mytx.exporter.formats.quantisation.Quantised` has."""

    integers: ir.Value
    scales: ir.Value
    shape: tuple[int, ...]


class Rewriter(abc.ABC):
    """Replaces nodes that read matrices by nodes that read their integers.

    Args:
        looked_up: the names of matrices that are in no product.
    """

    rule: Rule
    opsets: Mapping[str, int] = MappingProxyType({})  # of operators that are not ONNX's own

    def __init__(self, looked_up: Collection[str] = ()) -> None:
        self._looked_up = looked_up
        self._taken: dict[ir.Value, Rows] = {}  # by the float initializers, which are in no graph any more
        self._made: dict[ir.Value, Rows | None] = {}  # by what is computed of them
        self._names = Counter[str]()

    @abc.abstractmethod
    def product(self, node: ir.Node, x: ir.Value, rows: Rows) -> ir.Value:
        """``x @ matrix.T``, of nodes in front of ``node``."""

    @abc.abstractmethod
    def lookup(self, node: ir.Node, rows: Rows) -> ir.Value | None:
        """What ``node``, which takes whole rows of the matrix, gives; None where it is to take those of the floats."""

    @abc.abstractmethod
    def floats(self, node: ir.Node, rows: Rows) -> ir.Value:
        """The whole matrix."""

    def take(self, graph: ir.Graph, name: str) -> None:
        """Put the integers and scales of an initializer in its place."""
        value = graph.initializers.pop(name)
        assert value.const_value is not None
        matrix = value.const_value.numpy()
        quantised = quantise(name, matrix, self.rule, self._looked_up)
        integers, scales = (
            ir.Value(name=key, const_value=ir.tensor(array, name=key))
            for key, array in ((name, quantised.values), (name + SCALE, quantised.scales))
        )
        for stored in (integers, scales):
            graph.register_initializer(stored)
        self._taken[value] = Rows(integers, scales, matrix.shape)

    def rewrite(self, node: ir.Node) -> None:
        """Replace ``node`` if it multiplies by a matrix, or looks up rows of one."""
        if node.op_type in ("MatMul", "Gemm"):
            rows = self._rows_of_product(node)
            if rows is not None:
                x, bias = node.inputs[0], (*node.inputs, None)[2]
                assert x is not None
                product = self.product(node, x, rows)
                self._replace(node, product if bias is None else self.node(node, "Add", product, bias))
        elif node.op_type in ("Gather", "Slice") and node.inputs[0] in self._taken and _along_rows(node):
            found = self.lookup(node, self._taken[node.inputs[0]])
            if found is not None:
                self._replace(node, found)

    def keep_floats(self) -> None:
        """Where a matrix is read in another way, compute it of its integers; runtimes do so when they load the file."""
        for value, rows in self._taken.items():
            for use in list(value.uses()):
                use.node.replace_input_with(use.idx, self.floats(use.node, rows))

    # --- matrices ----------------------------------------------------------------------------------------------------

    def _rows_of_product(self, node: ir.Node) -> Rows | None:
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

    def _rows(self, value: ir.Value | None) -> Rows | None:
        """What ``value`` is in integers: a matrix of the model, one times a number, or several one below the other."""
        if value is None or value.name in self._looked_up:  # whose integers may be too large for a product
            return None
        if value in self._taken:
            return self._taken[value]
        if value not in self._made:
            self._made[value] = self._computed(value.producer())
        return self._made[value]

    def _computed(self, node: ir.Node | None) -> Rows | None:
        if node is not None and node.op_type == "Concat" and node.attributes["axis"].value == 0:
            parts = [self._rows(value) for value in node.inputs]
            known = [part for part in parts if part is not None]
            if len(known) < len(parts):
                return None
            # Of one part, too: a loop reads weights from outside through such a node, see ``inner.move_out``.
            return Rows(
                self.node(node, "Concat", *(part.integers for part in known), axis=0),
                self.node(node, "Concat", *(part.scales for part in known), axis=0),
                (sum(part.shape[0] for part in known), *known[0].shape[1:]),
            )
        if node is not None and node.op_type == "Mul":
            for matrix, factor in (node.inputs, node.inputs[::-1]):
                number = ir.convenience.get_const_tensor(factor) if factor is not None else None
                rows = self._rows(matrix) if number is not None and number.size == 1 else None
                if rows is not None:
                    # The integers are computed where the scales are: of one that is constant and one that is not,
                    # onnxruntime's MatMulNBits takes the scales for what they are not.
                    integers = self.node(node, "Concat", rows.integers, axis=0)
                    return Rows(integers, self.node(node, "Mul", rows.scales, factor), rows.shape)
        return None

    # --- nodes -------------------------------------------------------------------------------------------------------

    def constant(self, node: ir.Node, numbers: Sequence[int] | int) -> ir.Value:
        return self.node(node, "Constant", value=ir.tensor(np.array(numbers)))

    def node(self, before: ir.Node, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        return self.nodes(before, 1, op_type, *inputs, **attributes)[0]

    def nodes(
        self, before: ir.Node, count: int, op_type: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any
    ) -> Sequence[ir.Value]:
        """The outputs of a new node in front of another, whose name it has in its own."""
        name = f"{before.name}/{op_type}"
        self._names[name] += 1
        name += f"_{self._names[name]}"
        node = ir.node(op_type, inputs, attributes or None, domain=domain, num_outputs=count, name=name)
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
