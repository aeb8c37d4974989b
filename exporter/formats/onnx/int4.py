"""ONNX files with 4-bit weights, by an operator of onnxruntime's own: other runtimes cannot run them.

A product becomes ``MatMulNBits``, which rounds its activations to 8 bits, each block of 32 for itself, and never takes
their sum in less than 32 bits. ONNX's own 4-bit types need opset 21, and onnxruntime is up to four times slower with
them. Rows are looked up by standard operators: onnxruntime's ``GatherBlockQuantized`` takes a millisecond for one row
of 32,000.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from ...graphs.graph import Graph
from ..quantisation import BLOCK, LOWEST, RULES
from ..table import FORMATS
from .quantising import Rewriter, Rows, export_quantised

DOMAIN = "com.microsoft"
INT8_PRODUCTS = 4  # accuracy_level: activations in 8 bits. Without, products take 25 times as long.


class Int4(Rewriter):
    """Replaces products and lookups by those of 4-bit integers."""

    rule = RULES["int4"]
    opsets = MappingProxyType({DOMAIN: 1})

    def product(self, node: ir.Node, x: ir.Value, rows: Rows) -> ir.Value:
        return self.node(
            node,
            "MatMulNBits",
            x,
            rows.integers,
            rows.scales,
            domain=DOMAIN,
            N=rows.shape[0],
            K=math.prod(rows.shape[1:]),
            bits=4,
            block_size=BLOCK,
            accuracy_level=INT8_PRODUCTS,
        )

    def lookup(self, node: ir.Node, rows: Rows) -> ir.Value | None:
        # A slice is of positions, a small matrix.
        indices = node.inputs[1] if node.op_type == "Gather" and len(rows.shape) == 2 else None
        if indices is None:
            return None
        integers, scales = (self.node(node, "Gather", part, indices) for part in (rows.integers, rows.scales))
        shape = self.node(node, "Concat", self.node(node, "Shape", indices), self.constant(node, [-1]), axis=0)
        return self._cut(node, self._dequantised(node, integers, scales, shape), rows)

    def floats(self, node: ir.Node, rows: Rows) -> ir.Value:
        flat = self._dequantised(node, rows.integers, rows.scales, self.constant(node, [rows.shape[0], -1]))
        matrix = self._cut(node, flat, rows)
        return matrix if len(rows.shape) == 2 else self.node(node, "Reshape", matrix, self.constant(node, rows.shape))

    def _dequantised(self, node: ir.Node, integers: ir.Value, scales: ir.Value, shape: ir.Value) -> ir.Value:
        """The floats, in ``shape``, of ``[…, blocks, 16]`` bytes and ``[…, blocks]`` scales."""
        last = self.constant(node, [-1])
        halves = [
            self.node(node, "BitwiseAnd", integers, self._byte(node, 15)),
            self.node(node, "BitShift", integers, self._byte(node, 4), direction="RIGHT"),
        ]
        both = self.node(node, "Concat", *(self.node(node, "Unsqueeze", half, last) for half in halves), axis=-1)
        numbers = self.node(node, "Cast", both, to=ir.DataType.FLOAT)
        signed = self.node(node, "Add", numbers, self.node(node, "Constant", value=ir.tensor(np.float32(LOWEST))))
        wide = self.node(node, "Unsqueeze", scales, self.constant(node, [-2, -1]))
        return self.node(node, "Reshape", self.node(node, "Mul", signed, wide), shape)

    def _cut(self, node: ir.Node, found: ir.Value, rows: Rows) -> ir.Value:
        """Without what fills up the last block."""
        columns = math.prod(rows.shape[1:])
        if columns % BLOCK == 0:
            return found
        return self.node(node, "Slice", found, *(self.constant(node, [number]) for number in (0, columns, -1)))

    def _byte(self, node: ir.Node, number: int) -> ir.Value:
        return self.node(node, "Constant", value=ir.tensor(np.uint8(number)))


export = partial(export_quantised, FORMATS["int4"], Int4)


def needs(graphs: Mapping[str, Graph], name: str) -> tuple[str, ...]:
    """No other graph in int4: each file is made of the same graph in float32."""
    return ()
