"""Faults of quantisation in files of int4. Those that both precisions can have are in ``fault_int8``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import GraphProto, numpy_helper

from fault import Fault, found_by, quantised_fault
from fault_int8 import EVERYWHERE, LINEAR, changed, one_scale_off, rows_of_a_table_exchanged, scales_exchanged
from mytx.exporter.formats.quantisation import BLOCK, SCALE, unpacked
from planting import all_graphs, constant, node, weight
from subject import Subject, in_graph


def one_integer_off(values: np.ndarray) -> np.ndarray:
    values[3, 0, 5] ^= 1
    return values


def sign_of_a_block(scales: np.ndarray) -> np.ndarray:
    scales[2, 0] *= -1
    return scales


def halves_exchanged(values: np.ndarray) -> np.ndarray:
    """Of each byte: the first of two integers is in the upper half."""
    exchanged: np.ndarray = values >> 4 | values << 4
    return exchanged


def zero_points(graph: GraphProto) -> None:
    """Of 7 instead of 8, which none means."""
    rows, blocks = weight(graph, LINEAR + SCALE).dims
    zeros = np.full((rows, -(-blocks // 2)), 7 + 16 * 7, np.uint8)
    node(graph, "MatMulNBits", "0.linear1").input.append(constant(graph, zeros))


def near_copy(graph: GraphProto) -> None:
    values = numpy_helper.to_array(weight(graph, LINEAR)).copy()
    values[0, 0, 0] ^= 1
    node(graph, "MatMulNBits", "0.linear1").input[1] = constant(graph, values, "copy")


def floats_in_the_loop(graph: GraphProto) -> None:
    """The weight of a loop's body is what it was: float32."""
    body = next(part for part in all_graphs(graph) if any(LINEAR in item.name for item in part.initializer))
    integers, scales = (numpy_helper.to_array(weight(body, name)) for name in (LINEAR, LINEAR + SCALE))
    product = node(body, "MatMulNBits", "0.linear1")
    columns = next(item.i for item in product.attribute if item.name == "K")
    matrix = (unpacked(integers).reshape(*scales.shape, BLOCK) * scales[..., None]).reshape(len(scales), -1)[
        :, :columns
    ]
    weight(body, LINEAR).CopyFrom(
        numpy_helper.from_array(np.ascontiguousarray(matrix.T, np.float32), weight(body, LINEAR).name)
    )
    product.op_type, product.domain = "MatMul", ""
    del product.attribute[:]
    del product.input[2:]


def _row(name: str, plant: Callable[[Subject], None], checks: frozenset[str], **more: Any) -> Fault:
    return quantised_fault("int4", f"{name}, 4 bits", plant, checks, **more)


FAULTS = (
    _row("a scale off by 1 %", changed(LINEAR + SCALE, one_scale_off), EVERYWHERE),
    _row("an integer off by one", changed(LINEAR, one_integer_off), EVERYWHERE),
    _row("the sign of a block", changed(LINEAR + SCALE, sign_of_a_block), EVERYWHERE),
    _row("the halves of bytes exchanged", changed(LINEAR, halves_exchanged), EVERYWHERE),
    _row("scales of two layers exchanged", in_graph(scales_exchanged), EVERYWHERE),
    _row(
        "scales of an embedding exchanged", changed("embedding.weight" + SCALE, rows_of_a_table_exchanged), EVERYWHERE
    ),
    _row("other zero points", in_graph(zero_points), EVERYWHERE),
    _row("a near copy of integers", in_graph(near_copy), EVERYWHERE),
    _row(
        "a loop with weights in float32",
        in_graph(floats_in_the_loop),
        found_by("weights", "rounding"),
        graph="greedy",
        model="lively",
        small=True,
    ),
)
