"""Faults of quantisation, in files and runtimes of int8."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from onnx import GraphProto, TensorProto, numpy_helper

from fault import found_by, quantised_fault
from mytx.exporter.cases.case import Array
from mytx.exporter.formats.quantisation import LIMIT, SCALE
from mytx.exporter.runtimes.runtime import Description, Runtime
from planting import all_graphs, change, constant, insert, node, weight
from subject import Subject, in_graph

LAYER = "my_transformer.decoder.layers.0"
LINEAR = f"{LAYER}.linear1.weight"
TABLE = "embedding.weight"
EVERYWHERE = found_by("weights", "structure", "rounding")
VALUES = found_by("structure", "rounding")


# --- in files --------------------------------------------------------------------------------------------------------


def changed(name: str, function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Subject], None]:
    return in_graph(lambda graph: change(graph, name, function))


def one_scale_off(scales: np.ndarray) -> np.ndarray:
    scales[5] *= np.float32(1.01)
    return scales


def one_integer_off(values: np.ndarray) -> np.ndarray:
    values[3] += np.where(values[3] < LIMIT, 1, -1).astype(np.int8)
    return values


def sign_of_a_row(values: np.ndarray) -> np.ndarray:
    values[2] *= -1
    return values


def scales_exchanged(graph: GraphProto) -> None:
    first, second = (weight(graph, f"layers.{layer}.linear1.weight{SCALE}") for layer in (0, 1))
    first.raw_data, second.raw_data = second.raw_data, first.raw_data


def rows_of_a_table_exchanged(scales: np.ndarray) -> np.ndarray:
    return scales[::-1].copy()


def with_full_range(graph: GraphProto) -> None:
    """All of 8 bits, and scales that are right for it."""
    change(graph, LINEAR, lambda values: np.clip(values.astype(np.int16) * 2, -127, 127).astype(np.int8))
    change(graph, LINEAR + SCALE, lambda scales: scales / 2)


def zero_point_off(graph: GraphProto) -> None:
    product = node(graph, "MatMulInteger", "0.linear1")
    wide = insert(graph, product, "Cast", [product.input[2]], "wide", to=TensorProto.INT32)
    more = insert(graph, product, "Add", [wide, constant(graph, np.array(1, np.int32))], "more")
    product.input[2] = insert(graph, product, "Cast", [more], "off", to=TensorProto.UINT8)


def zero_point_dropped(graph: GraphProto) -> None:
    del node(graph, "MatMulInteger", "0.linear1").input[2]


def zero_point_of_weights(graph: GraphProto) -> None:
    node(graph, "MatMulInteger", "0.linear1").input.append(constant(graph, np.array(1, np.int8)))


def along_the_wrong_axis(graph: GraphProto) -> None:
    """Of a square matrix, where nothing but the values tells."""
    turned = next(
        found for found in graph.node if found.op_type == "Transpose" and "0.self_attn.out_proj" in found.name
    )
    del turned.attribute[:]
    turned.op_type = "Identity"


def scale_of_other_activations(graph: GraphProto) -> None:
    first, other = (node(graph, "DynamicQuantizeLinear", f"0.{name}") for name in ("self_attn.q_proj", "linear1"))
    mul = next(found for found in graph.node if found.op_type == "Mul" and found.input[0] == other.output[1])
    mul.input[0] = first.output[1]


def zero_point_of_other_activations(graph: GraphProto) -> None:
    first = node(graph, "DynamicQuantizeLinear", "0.self_attn.q_proj")
    node(graph, "MatMulInteger", "0.linear1").input[2] = first.output[2]


def softmax_scale_left_out(graph: GraphProto) -> None:
    """Of the fused query of a step: its integers are right, their scales are not."""
    fused = next(found for found in graph.node if found.op_type == "Mul" and SCALE in found.input[0])
    fused.op_type = "Identity"
    del fused.input[1]


def near_copy(graph: GraphProto) -> None:
    """Integers that are nearly those of a layer, which reads them instead."""
    values = numpy_helper.to_array(weight(graph, LINEAR)).copy()
    values[0, 0] ^= 1
    turned = next(found for found in graph.node if found.op_type == "Transpose" and LINEAR in found.input)
    turned.input[0] = constant(graph, values, "copy")


def floats_in_the_loop(graph: GraphProto) -> None:
    """The weight of a loop's body is what it was: float32."""
    body = next(part for part in all_graphs(graph) if any(LINEAR in item.name for item in part.initializer))
    integers, scales = (numpy_helper.to_array(weight(body, name)) for name in (LINEAR, LINEAR + SCALE))
    product = next(found for found in body.node if found.op_type == "MatMulInteger" and "0.linear1" in found.name)
    quantised = next(found for found in body.node if product.input[0] in found.output)
    total = next(found for found in body.node if product.output[0] in found.input)
    last = next(found for found in body.node if total.output[0] in found.input)
    weight(body, LINEAR).CopyFrom(numpy_helper.from_array(integers * scales, weight(body, LINEAR).name))
    product.op_type, product.input[0] = "MatMul", quantised.input[0]
    del product.input[2:]
    last.op_type, last.input[0] = "Identity", product.output[0]
    del last.input[1:]
    body.node.remove(total)


# --- in runtimes -----------------------------------------------------------------------------------------------------


@dataclass
class Off:
    """A runtime whose outputs are changed by ``function``."""

    runtime: Runtime
    function: Callable[[Array], Array]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {name: self.function(array) for name, array in self.runtime.run(inputs).items()}

    def describe(self) -> Description:
        return self.runtime.describe()


def off(function: Callable[[Array], Array]) -> Callable[[Subject], None]:
    """In every run that rounds."""
    return lambda subject: subject.wrap_runtimes(lambda runtime: Off(runtime, function), lambda run: run.rounds)


def a_little(array: Array) -> Array:
    return array if array.dtype.kind != "f" else (array * np.float32(1.002)).astype(array.dtype)


def saturated(array: Array) -> Array:
    return np.clip(array, None, np.float32(0.9) * array.max()) if array.dtype.kind == "f" else array


_row = partial(quantised_fault, "int8")
FAULTS = (
    _row("a scale off by 1 %", changed(LINEAR + SCALE, one_scale_off), EVERYWHERE),
    _row("the integers of a row off by one", changed(LINEAR, one_integer_off), EVERYWHERE),
    _row("the sign of a row", changed(LINEAR, sign_of_a_row), EVERYWHERE),
    _row("scales of two layers exchanged", in_graph(scales_exchanged), EVERYWHERE),
    _row(
        "scales of an embedding exchanged", changed("embedding.weight" + SCALE, rows_of_a_table_exchanged), EVERYWHERE
    ),
    _row("integers that saturate", in_graph(with_full_range), EVERYWHERE),
    _row("a zero point off by one", in_graph(zero_point_off), VALUES),
    _row("a zero point that is left out", in_graph(zero_point_dropped), VALUES),
    _row("a zero point for weights", in_graph(zero_point_of_weights), VALUES),
    _row("integers that are not turned", in_graph(along_the_wrong_axis), VALUES),
    _row("the scale of other activations", in_graph(scale_of_other_activations), VALUES),
    _row("the zero point of other activations", in_graph(zero_point_of_other_activations), VALUES),
    _row("the scale of the softmax left out", in_graph(softmax_scale_left_out), VALUES, graph="step"),
    _row("a near copy of integers", in_graph(near_copy), EVERYWHERE),
    _row(
        "a loop with weights in float32",
        in_graph(floats_in_the_loop),
        found_by("weights", "rounding"),
        graph="greedy",
        model="lively",
        small=True,
    ),
    _row("a runtime that is off by a little in every case", off(a_little), found_by("rounding")),
    _row("a runtime that saturates", off(saturated), found_by("rounding")),
)
