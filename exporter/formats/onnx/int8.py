"""ONNX files with integer products: dynamic int8, by standard operators only.

A product becomes ``DynamicQuantizeLinear`` and ``MatMulInteger``, which onnxruntime fuses into one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import onnx_ir as ir

from ...graphs.graph import Graph
from ..quantisation import RULES
from ..table import FORMATS
from .quantising import Rewriter, Rows, export_quantised

FLOAT = ir.DataType.FLOAT


class Int8(Rewriter):
    """Replaces products by those of integers."""

    rule = RULES["int8"]

    def product(self, node: ir.Node, x: ir.Value, rows: Rows) -> ir.Value:
        integers, scale, zero = self._rounded(node, x)
        matrix = self.node(node, "Transpose", rows.integers, perm=[1, 0])
        total = self.node(node, "Cast", self.node(node, "MatMulInteger", integers, matrix, zero), to=FLOAT)
        flat = self.node(node, "Reshape", rows.scales, self.constant(node, [-1]))
        return self.node(node, "Mul", total, self.node(node, "Mul", scale, flat))

    def lookup(self, node: ir.Node, rows: Rows) -> ir.Value | None:
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        found = [
            self.node(node, node.op_type, part, *node.inputs[1:], **attributes) for part in (rows.integers, rows.scales)
        ]
        return self._times(node, *found)

    def floats(self, node: ir.Node, rows: Rows) -> ir.Value:
        return self._times(node, rows.integers, rows.scales)

    def _times(self, node: ir.Node, integers: ir.Value, scales: ir.Value) -> ir.Value:
        return self.node(node, "Mul", self.node(node, "Cast", integers, to=FLOAT), scales)

    def _rounded(self, node: ir.Node, x: ir.Value) -> Sequence[ir.Value]:
        """``x`` in integers, once for all products that read it."""
        for use in x.uses():
            if use.node.op_type == "DynamicQuantizeLinear" and use.node.graph is node.graph:
                return use.node.outputs
        return self.nodes(node, 3, "DynamicQuantizeLinear", x)


export = partial(export_quantised, FORMATS["int8"], Int8)


def needs(graphs: Mapping[str, Graph], name: str) -> tuple[str, ...]:
    """No other graph in int8: each file is made of the same graph in float32."""
    return ()
