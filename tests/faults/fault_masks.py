"""Masks that hide something else, nothing, or nothing any more at another length; positions that are others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from fault import Fault, found_by
from planting import (
    bypass,
    constant,
    get_constant,
    insert,
    mask_input_ignored,
    mask_polarity_turned,
    node,
    reads,
    rewire,
)
from subject import in_graph

DECODER = "my_transformer.decoder"
SELF = f"{DECODER}.layers.0.self_attn"
CROSS = f"{DECODER}.layers.1.multihead_attn"
TARGET, MEMORY = "tgt_key_padding_mask", "memory_key_padding_mask"
VALUES = found_by("rounding", "structure")

Edit = Callable[[GraphProto], None]


# --- padding ---------------------------------------------------------------------------------------------------------


def _in_place_of(graph: GraphProto, name: str, make: Callable[[NodeProto], str]) -> None:
    """What read the mask reads what ``make`` puts in front of its first reader."""
    readers = reads(graph, name)
    made = make(readers[0])
    for found in readers:
        for index, read in enumerate(found.input):
            if read == name:
                found.input[index] = made


def _range_over(graph: GraphProto, before: NodeProto, name: str) -> str:
    """0 to S - 1, for a mask ``[N, S]``."""
    shape = insert(graph, before, "Shape", [name], "mask_length", start=1)
    axis = constant(graph, np.array([0], np.int64), "first")
    length = insert(graph, before, "Squeeze", [shape, axis], "mask_count")
    zero, one = constant(graph, np.array(0, np.int64), "zero"), constant(graph, np.array(1, np.int64), "one")
    return insert(graph, before, "Range", [zero, length, one], "every_position")


def right_padding_assumed(name: str) -> Edit:
    """onnxruntime#18945: the mask is only counted."""

    def fault(graph: GraphProto) -> None:
        def make(before: NodeProto) -> str:
            real = insert(graph, before, "Not", [name], "real")
            counted = insert(graph, before, "Cast", [real], "counted", to=TensorProto.INT64)
            axis = constant(graph, np.array([1], np.int64), "along")
            count = insert(graph, before, "ReduceSum", [counted, axis], "real_length", keepdims=1)
            positions = _range_over(graph, before, name)
            return insert(graph, before, "GreaterOrEqual", [positions, count], "behind")

        _in_place_of(graph, name, make)

    return fault


def mask_of_the_traced_width(name: str, width: int) -> Edit:
    """espnet_onnx#95: what stands behind the traced length is never padding."""

    def fault(graph: GraphProto) -> None:
        def make(before: NodeProto) -> str:
            limit = constant(graph, np.array(width, np.int64), "width")
            inside = insert(graph, before, "Less", [_range_over(graph, before, name), limit], "inside")
            return insert(graph, before, "And", [name, inside], "narrow")

        _in_place_of(graph, name, make)

    return fault


def mask_of_the_first_sentence(name: str) -> Edit:
    def fault(graph: GraphProto) -> None:
        def make(before: NodeProto) -> str:
            row = insert(graph, before, "Gather", [name, constant(graph, np.array([0], np.int64), "row")], "alone")
            return insert(graph, before, "Expand", [row, insert(graph, before, "Shape", [name], "all")], "for_all")

        _in_place_of(graph, name, make)

    return fault


def memory_padding_taken_from_the_target(graph: GraphProto) -> None:
    """Where both are of one length it runs; elsewhere it is refused or, with one target, broadcast."""
    rewire(graph, MEMORY, TARGET)


def mask_after_the_softmax(graph: GraphProto) -> None:
    """The weights of padding are set to 0, and what is left does not sum to 1."""
    softmax = node(graph, "Softmax", f"{CROSS}/")
    bypass(graph, next(found for found in graph.node if found.output[0] == softmax.input[0]))
    product = reads(graph, softmax.output[0])[0]
    real = insert(graph, product, "Not", [MEMORY], "real")
    factor = insert(graph, product, "Cast", [real], "factor", to=TensorProto.FLOAT)
    axes = constant(graph, np.array([1, 2], np.int64), "inner")
    spread = insert(graph, product, "Unsqueeze", [factor, axes], "spread")
    product.input[0] = insert(graph, product, "Mul", [softmax.output[0], spread], "masked")


def dead_rows_not_set_to_zero(graph: GraphProto) -> None:
    bypass(graph, [found for found in graph.node if found.op_type == "Where" and f"{CROSS}/" in found.name][-1], kept=2)


def dead_rows_are_nan(graph: GraphProto) -> None:
    """onnxscript#2479: the mask is not opened, and what comes of it is not set to 0."""
    dead_rows_not_set_to_zero(graph)
    first = f"{DECODER}.layers.0.multihead_attn/"
    opened = next(found for found in graph.node if found.op_type == "Where" and first in found.name and _opens(found))
    bypass(graph, opened, kept=2)


def _opens(found: NodeProto) -> bool:
    return found.input[0].startswith("all_") and "attention" not in found.input[2]


def minus_infinity_is(value: float) -> Edit:
    """A finite "minus infinity": a row that is all padding attends to the padding."""

    def fault(graph: GraphProto) -> None:
        where = reads(graph, MEMORY)[-1]
        assert where.op_type == "Where"
        assert np.isneginf(get_constant(graph, where.input[1]))
        where.input[1] = constant(graph, np.array(value, np.float32))

    return fault


def cross_attention_without_mask(graph: GraphProto) -> None:
    """The encoder hides the source's padding, the decoder forgets to."""
    for softmax in [found for found in graph.node if found.op_type == "Softmax" and "multihead_attn" in found.name]:
        bypass(graph, next(found for found in graph.node if found.output[0] == softmax.input[0]))


def padded_columns_vanish(graph: GraphProto) -> None:
    """pytorch#97111: the output ends where the longest sentence does."""
    last = next(found for found in graph.node if found.output[0] == "memory")
    last.output[0] = "whole"
    real = insert(graph, last, "Not", ["src_key_padding_mask"], "real")
    number = insert(graph, last, "Cast", [real], "number", to=TensorProto.INT64)
    one = constant(graph, np.array(1, np.int64), "step")
    places = insert(graph, last, "Add", [_range_over(graph, last, "src_key_padding_mask"), one], "places")
    product = insert(graph, last, "Mul", [number, places], "real_places")
    end = insert(graph, last, "ReduceMax", [product], "end", keepdims=0)
    flat = insert(graph, last, "Reshape", [end, constant(graph, np.array([1], np.int64), "flat")], "flat_end")
    start, axis = constant(graph, np.array([0], np.int64), "start"), constant(graph, np.array([1], np.int64), "cut")
    cut = graph.node.add()
    cut.op_type, cut.name = "Slice", "planted/cut"
    cut.input.extend(["whole", start, flat, axis])
    cut.output.append("memory")


def pooling_counts_padding(graph: GraphProto) -> None:
    mask = next(found for found in reads(graph, "src_key_padding_mask") if found.op_type == "Not")
    size = insert(graph, mask, "Shape", ["src_key_padding_mask"], "size")
    false = numpy_helper.from_array(np.array([False]))
    mask.input[0] = insert(graph, mask, "ConstantOfShape", [size], "none", value=false)


def float_taken_for_bool(name: str) -> Edit:
    """-inf stays, and all else becomes 0: right for every mask that only hides (pytorch#107084)."""

    def fault(graph: GraphProto) -> None:
        first = reads(graph, name)[0]
        hidden = insert(graph, first, "IsInf", [name], "hidden")
        low = constant(graph, np.array(-np.inf, np.float32), "low")
        zero = constant(graph, np.array(0, np.float32), "zero")
        rewire(graph, name, insert(graph, first, "Where", [hidden, low, zero], "made"), besides=hidden)

    return fault


# --- the future ------------------------------------------------------------------------------------------------------


def causal_mask_dropped(graph: GraphProto) -> None:
    """j > i becomes j > j, which is nowhere."""
    greater = node(graph, "Greater")
    greater.input[1] = greater.input[0]


def causal_is(op_type: str) -> Edit:
    def fault(graph: GraphProto) -> None:
        node(graph, "Greater").op_type = op_type

    return fault


def causal_mask_shows_the_next(graph: GraphProto) -> None:
    greater = node(graph, "Greater")
    one = constant(graph, np.array(1, np.int64))
    greater.input[1] = insert(graph, greater, "Add", [greater.input[1], one], "later")


def causal_mask_of_the_traced_length(graph: GraphProto) -> None:
    """Cached before the export, it goes in as a constant: right at length 5, and only there (fairseq#4026)."""
    rewire(graph, node(graph, "Greater").output[0], constant(graph, np.triu(np.ones((5, 5), bool), 1)))


def causal_mask_added_as_zero_and_one(graph: GraphProto) -> None:
    """A bool mask that is added as it is: the seed's own error."""
    causal = node(graph, "Greater").output[0]
    where = next(found for found in graph.node if found.op_type == "Where" and found.input[0] == causal)
    where.input[1] = constant(graph, np.array(1, np.float32))


def causal_mask_ends_at(limit: int) -> Edit:
    """The table of the mask is so long, and what stands behind it is open."""

    def fault(graph: GraphProto) -> None:
        greater = node(graph, "Greater")
        after = list(graph.node)[list(graph.node).index(greater) + 1]
        inside = insert(graph, after, "Less", ["arange", constant(graph, np.array(limit, np.int64), "limit")], "inside")
        closed = insert(graph, after, "And", [greater.output[0], inside], "closed")
        rewire(graph, greater.output[0], closed, besides=closed)

    return fault


# --- the catalogue ---------------------------------------------------------------------------------------------------


def _row(name: str, edit: Edit, *checks: str, **more: object) -> Fault:
    expected = found_by(*checks) if checks else VALUES
    return Fault(name, "masks", in_graph(edit), expected, **more)  # type: ignore[arg-type]


BARE = {"model": "bare, every mask", "graph": "full"}
FAULTS = [
    _row("the target's padding mask ignored", mask_input_ignored(TARGET)),
    _row("the memory's padding mask ignored", mask_input_ignored(MEMORY)),
    _row("the source's padding mask ignored", mask_input_ignored("src_key_padding_mask"), graph="encoder"),
    _row("the target's padding mask upside down", mask_polarity_turned(TARGET)),
    _row("the memory's padding mask upside down", mask_polarity_turned(MEMORY)),
    _row("padding on the right assumed", right_padding_assumed(MEMORY)),
    _row("a padding mask that keeps the traced width", mask_of_the_traced_width(MEMORY, 7)),
    _row("the padding mask of the first sentence for all", mask_of_the_first_sentence(TARGET)),
    _row(
        "the target's padding mask for the memory",
        memory_padding_taken_from_the_target,
        *("rounding", "structure", "runtime"),
    ),
    _row("the mask applied after the softmax", mask_after_the_softmax, place=CROSS),
    _row("dead rows not set to zero", dead_rows_not_set_to_zero, place=CROSS),
    _row("dead rows are NaN", dead_rows_are_nan, place=CROSS),
    _row("a million for infinity", minus_infinity_is(-1e6)),
    _row("the least float32 for infinity", minus_infinity_is(float(np.finfo(np.float32).min))),
    _row("a full graph whose decoder sees the source's padding", cross_attention_without_mask, graph="full"),
    _row("padded columns vanish from the output", padded_columns_vanish, "interface", graph="encoder"),
    _row("a pooling that counts padding", pooling_counts_padding, graph="full", model="average pooling"),
    *(
        _row(f"the float {name} taken for bool", float_taken_for_bool(name), **BARE)
        for name in ("tgt_mask", "memory_mask", "src_key_padding_mask", "memory_key_padding_mask")
    ),
    _row("the bool src_mask upside down", mask_polarity_turned("src_mask"), **BARE),
    _row("the causal mask dropped", causal_mask_dropped),
    _row("the causal mask hides the present", causal_is("GreaterOrEqual")),
    _row("the causal mask turned round", causal_is("Less")),
    _row("the causal mask shows the next position", causal_mask_shows_the_next),
    _row("a causal mask of the traced length", causal_mask_of_the_traced_length, "runtime"),
    _row("the causal mask added as 0 and 1", causal_mask_added_as_zero_and_one, place=SELF),
    _row("a causal mask that ends at 40", causal_mask_ends_at(40), "rounding"),
]
