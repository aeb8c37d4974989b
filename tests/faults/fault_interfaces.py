"""Shapes, dtypes and names that are not the contract's, and files that are damaged."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper

from fault import Fault, found_by
from planting import constant, insert, mask_input_ignored, node, reads, rewire
from subject import Subject, in_graph

SELF = "my_transformer.decoder.layers.0.self_attn"
CROSS = "my_transformer.decoder.layers.1.multihead_attn"
INTERFACE, RUNTIME = found_by("interface"), found_by("runtime")
VALUES = found_by("rounding", "structure")
# Nothing is compared, either.
UNCOMPARED = found_by("interface", "rounding", "structure")
REFUSED = found_by("interface", "runtime", "rounding", "structure")

Edit = Callable[[GraphProto], None]


# --- shapes ----------------------------------------------------------------------------------------------------------


def frozen_in_a_reshape(name: str, position: int, value: int) -> Edit:
    """One of the sizes that a shape is made of."""

    def fault(graph: GraphProto) -> None:
        shape = node(graph, "Concat", name)
        parts = list(shape.input)
        parts[position] = constant(graph, np.array([value], np.int64))
        del shape.input[:]
        shape.input.extend(parts)

    return fault


def after_the_output(op_type: str, *values: np.ndarray, **attributes: object) -> Edit:
    """One more operator behind the last node; the declared shape stays."""

    def fault(graph: GraphProto) -> None:
        last = next(found for found in graph.node if found.output[0] == "logits")
        last.output[0] = "whole"
        names = [constant(graph, value, f"planted_{index}") for index, value in enumerate(values)]
        graph.node.append(helper.make_node(op_type, ["whole", *names], ["logits"], "planted/last", **attributes))

    return fault


def dimension_fixed_at_the_traced_length(graph: GraphProto) -> None:
    for value in graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "batch":
                dim.dim_value = 2


def dimension_without_a_name(graph: GraphProto) -> None:
    graph.output[0].type.tensor_type.shape.dim[1].Clear()


def dimensions_of_one_name(graph: GraphProto) -> None:
    for dim in graph.input[1].type.tensor_type.shape.dim:
        if dim.dim_param == "source":
            dim.dim_param = "target"


# --- dtypes ----------------------------------------------------------------------------------------------------------


def input_dtype_changed(graph: GraphProto) -> None:
    graph.input[0].type.tensor_type.elem_type = TensorProto.INT32


def ids_of_int32(graph: GraphProto) -> None:
    """It loads, and wants other ids than callers have (transformers#16538)."""
    first = reads(graph, "tgt")[0]
    cast = insert(graph, first, "Cast", ["tgt"], "wide", to=TensorProto.INT64)
    rewire(graph, "tgt", cast, besides=cast)
    input_dtype_changed(graph)


def output_as(dtype: int) -> Edit:
    def fault(graph: GraphProto) -> None:
        after_the_output("Cast", to=dtype)(graph)
        graph.output[0].type.tensor_type.elem_type = dtype

    return fault


def mask_as_float(graph: GraphProto) -> None:
    name = "tgt_key_padding_mask"
    cast = insert(graph, reads(graph, name)[0], "Cast", [name], "hidden", to=TensorProto.BOOL)
    rewire(graph, name, cast, besides=cast)
    graph.input[2].type.tensor_type.elem_type = TensorProto.FLOAT


def rounded_inside(found: Callable[[GraphProto], NodeProto], dtype: int) -> Edit:
    """What a node reads goes through a smaller dtype."""

    def fault(graph: GraphProto) -> None:
        before = found(graph)
        half = insert(graph, before, "Cast", [before.input[0]], "half", to=dtype)
        before.input[0] = insert(graph, before, "Cast", [half], "whole", to=TensorProto.FLOAT)

    return fault


def softmax_in_float16(graph: GraphProto) -> None:
    rounded_inside(lambda graph: node(graph, "Softmax", CROSS), TensorProto.FLOAT16)(graph)


# --- names -----------------------------------------------------------------------------------------------------------


def input_renamed(graph: GraphProto) -> None:
    rewire(graph, "tgt", "input_ids")
    graph.input[0].name = "input_ids"


def output_renamed(graph: GraphProto) -> None:
    next(found for found in graph.node if found.output[0] == "logits").output[0] = "output"
    graph.output[0].name = "output"


def extra_output(graph: GraphProto) -> None:
    graph.output.append(helper.make_tensor_value_info(node(graph, "Softmax").output[0], TensorProto.FLOAT, None))


def output_missing(graph: GraphProto) -> None:
    extra_output(graph)
    del graph.output[0]


def extra_input(graph: GraphProto) -> None:
    graph.input.append(helper.make_tensor_value_info("temperature", TensorProto.FLOAT, [1]))


def input_dropped(graph: GraphProto) -> None:
    """Gone from the file without an error: a graph of the same name that knows no padding (fastT5#7)."""
    mask_input_ignored("tgt_key_padding_mask")(graph)
    for found in reads(graph, "tgt_key_padding_mask"):
        found.input[0] = "tgt"
    del graph.input[2]


def inputs_in_another_order(graph: GraphProto) -> None:
    first = onnx.ValueInfoProto()
    first.CopyFrom(graph.input[0])
    del graph.input[0]
    graph.input.append(first)


def weight_that_callers_may_override(graph: GraphProto) -> None:
    graph.input.append(helper.make_tensor_value_info("classification.bias", TensorProto.FLOAT, [13]))


# --- files -----------------------------------------------------------------------------------------------------------


def unknown_operator(graph: GraphProto) -> None:
    node(graph, "Softmax").op_type = "Softmacks"


def cut_off(kept: int) -> Callable[[Subject], None]:
    return lambda subject: subject.path.write_bytes(subject.path.read_bytes()[:kept]) and None


def weights_elsewhere(subject: Subject) -> None:
    model = onnx.load(subject.path)
    onnx.save(model, subject.path, save_as_external_data=True, location="gone", size_threshold=0)
    (subject.folder / "gone").unlink()


def removed(subject: Subject) -> None:
    subject.path.unlink()


# --- the catalogue ---------------------------------------------------------------------------------------------------


def _row(name: str, kind: str, edit: Edit, checks: frozenset[str], **more: object) -> Fault:
    return Fault(name, kind, in_graph(edit), checks, **more)  # type: ignore[arg-type]


def _file(name: str, plant: Callable[[Subject], None], checks: frozenset[str], words: str = "") -> Fault:
    return Fault(name, "files", plant, checks, graph="encoder", words=words)


DAMAGED = found_by("weights", "runtime", "rounding", "structure")
FAULTS = [
    _row("the batch frozen in a reshape", "shapes", frozen_in_a_reshape(SELF, 1, 2), RUNTIME),
    _row("the target's length frozen in a reshape", "shapes", frozen_in_a_reshape(SELF, 0, 5), RUNTIME),
    _row("the memory's length frozen in a reshape", "shapes", frozen_in_a_reshape("multihead_attn", 0, 7), RUNTIME),
    _row("dimensions of 1 squeezed out of the output", "shapes", after_the_output("Squeeze"), INTERFACE),
    _row(
        "one more dimension in front of the output",
        "shapes",
        after_the_output("Unsqueeze", np.array([0], np.int64)),
        UNCOMPARED,
    ),
    _row("the output sequence first", "shapes", after_the_output("Transpose", perm=[1, 0, 2]), INTERFACE),
    _row(
        "one average for all positions",
        "shapes",
        after_the_output("ReduceMean", np.array([1], np.int64), keepdims=1),
        INTERFACE,
    ),
    _row(
        "a dimension fixed at the traced length",
        "shapes",
        dimension_fixed_at_the_traced_length,
        found_by("interface", "runtime"),
        words="contract says ['batch', 'target']",
        small=True,
    ),
    _row(
        "a dimension without a name",
        "shapes",
        dimension_without_a_name,
        INTERFACE,
        words="output logits is ['batch', None, 13], the contract says",
        small=True,
    ),
    _row(
        "two dimensions of one name",
        "shapes",
        dimensions_of_one_name,
        found_by("interface", "runtime"),
        words="input memory is ['batch', 'target', 16]",
        small=True,
    ),
    _row("int32 declared for ids", "dtypes", input_dtype_changed, REFUSED, words="input tgt is int32"),
    _row("int32 wanted for ids", "dtypes", ids_of_int32, REFUSED, words="input tgt is int32"),
    _row(
        "an output in float64", "dtypes", output_as(TensorProto.DOUBLE), found_by("interface", "rounding"), small=True
    ),
    _row("an output in float16", "dtypes", output_as(TensorProto.FLOAT16), UNCOMPARED),
    _row("a padding mask in float32", "dtypes", mask_as_float, REFUSED),
    _row(
        "a softmax in float16",
        "dtypes",
        softmax_in_float16,
        VALUES,
        place=CROSS,
    ),
    _row(
        "a norm in bfloat16",
        "dtypes",
        rounded_inside(lambda graph: node(graph, "LayerNormalization", "decoder.norm/"), TensorProto.BFLOAT16),
        VALUES,
        place="my_transformer.decoder",
    ),
    _row("an input renamed", "names", input_renamed, REFUSED, words="input input_ids is not in the contract"),
    _row("the output renamed", "names", output_renamed, UNCOMPARED, words="output logits is missing from the file"),
    _row("an output too many", "names", extra_output, INTERFACE, words="is not in the contract", small=True),
    _row(
        "an output missing",
        "names",
        output_missing,
        found_by("interface", "weights", "rounding", "structure"),
        words="output logits is missing from the file",
    ),
    _row("an input that nobody gives", "names", extra_input, REFUSED, words="temperature is not in the contract"),
    _row("an input dropped", "names", input_dropped, REFUSED, words="tgt_key_padding_mask is missing from the file"),
    _row(
        "the inputs in another order",
        "names",
        inputs_in_another_order,
        INTERFACE,
        words="the inputs stand in the order memory, ",
        small=True,
    ),
    _row(
        "a weight that callers may override",
        "names",
        weight_that_callers_may_override,
        INTERFACE,
        words="input classification.bias is not in the contract",
        small=True,
    ),
    _file("an operator that does not exist", in_graph(unknown_operator), found_by("runtime", "rounding", "structure")),
    *(_file(f"a file cut off after {kept} bytes", cut_off(kept), DAMAGED) for kept in (1, 5000)),
    _file("an empty file", cut_off(0), DAMAGED | INTERFACE),
    _file("a file without its last byte", cut_off(-1), DAMAGED),
    _file("a file whose weights are gone", weights_elsewhere, DAMAGED, "gone"),
    _file("a file that is not there", removed, DAMAGED, "cannot load encoder.onnx"),
]
