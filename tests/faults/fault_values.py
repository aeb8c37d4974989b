"""Computations that are not the model's: positions, epsilon, activation, softmax, residuals, the last layer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import GraphProto, TensorProto, helper

import planting
from fault import Fault, found_by
from planting import bypass, constant, get_constant, insert, node, reads, rewire, set_attribute
from subject import in_graph

DECODER = "my_transformer.decoder"
SELF = f"{DECODER}.layers.0.self_attn"
CROSS = f"{DECODER}.layers.1.multihead_attn"
NORM = f"{DECODER}.layers.1.norm2"
ACTIVATION = f"{DECODER}.layers.1.activation"
GELU = {"model": "norm first, gelu, no bias", "graph": "encoder", "place": "my_transformer.encoder.layers.0.activation"}
VALUES, STRUCTURE = found_by("rounding", "structure"), found_by("structure")

Edit = Callable[[GraphProto], None]


# --- positions and embeddings ----------------------------------------------------------------------------------------


def positions_from_one(graph: GraphProto) -> None:
    cut = node(graph, "Slice", "pos_embedding")
    one = constant(graph, np.array([1], np.int64))
    cut.input[2] = insert(graph, cut, "Add", [cut.input[2], one], "end")
    cut.input[1] = one


def positions_end_early(graph: GraphProto) -> None:
    cut = node(graph, "Slice", "pos_embedding")
    limit = constant(graph, np.array([40], np.int64))
    cut.input[2] = insert(graph, cut, "Min", [cut.input[2], limit], "end")


def positions_repeat(graph: GraphProto) -> None:
    """From 32 on they start again: right in every short sentence."""
    add = node(graph, "Add", "pos_embedding")
    length = insert(graph, add, "Shape", [add.input[0]], "embedded_length", end=1)
    axis = constant(graph, np.array([0], np.int64), "first")
    count = insert(graph, add, "Squeeze", [length, axis], "count")
    zero, one = constant(graph, np.array(0, np.int64), "zero"), constant(graph, np.array(1, np.int64), "one")
    positions = insert(graph, add, "Range", [zero, count, one], "positions")
    period = constant(graph, np.array(32, np.int64), "period")
    again = insert(graph, add, "Mod", [positions, period], "again")
    add.input[1] = insert(graph, add, "Gather", ["pos_embedding.pe", again], "gathered")


def embedding_not_scaled(graph: GraphProto) -> None:
    planting.set_constant(graph, node(graph, "Mul", "tgt_token_embedding").input[1], np.array(1.0, np.float32))


def embedding_scaled_with_positions(graph: GraphProto) -> None:
    mul, add = node(graph, "Mul", "tgt_token_embedding"), node(graph, "Add", "pos_embedding")
    add.input[0] = mul.input[0]
    after = list(graph.node)[list(graph.node).index(add) + 1]
    scaled = insert(graph, after, "Mul", [add.output[0], mul.input[1]], "scaled")
    rewire(graph, add.output[0], scaled, besides=scaled)


def ids_clipped(graph: GraphProto) -> None:
    """The last id of the vocabulary reads the row of the one before it."""
    gather = node(graph, "Gather", "tgt_token_embedding")
    limit = constant(graph, np.array(11, np.int64))
    gather.input[1] = insert(graph, gather, "Min", [gather.input[1], limit], "clipped")


# --- norms and activations -------------------------------------------------------------------------------------------


def epsilon(value: float) -> Edit:
    return lambda graph: set_attribute(node(graph, "LayerNormalization", "layers.1.norm2"), "epsilon", value)


def activation(op_type: str) -> Edit:
    def fault(graph: GraphProto) -> None:
        node(graph, "Relu", "layers.1").op_type = op_type

    return fault


def gelu_by_tanh(graph: GraphProto) -> None:
    """erf(x) is about tanh(2 / sqrt(pi) * (x + 0.09 * x^3)): the largest error is near 4e-4."""
    erf = next(found for found in graph.node if found.op_type == "Erf")
    x = erf.input[0]
    cubed = insert(graph, erf, "Mul", [insert(graph, erf, "Mul", [x, x], "squared"), x], "cubed")
    small = insert(graph, erf, "Mul", [cubed, constant(graph, np.array(0.08943, np.float32), "a")], "small")
    total = insert(graph, erf, "Add", [x, small], "total")
    erf.input[0] = insert(graph, erf, "Mul", [total, constant(graph, np.array(1.1283792, np.float32), "b")], "wide")
    erf.op_type = "Tanh"


def gelu_by_sigmoid(graph: GraphProto) -> None:
    """x * sigmoid(1.702 x), the "quick" GELU: erf(x) is about tanh(1.2035 x)."""
    erf = next(found for found in graph.node if found.op_type == "Erf")
    wide = constant(graph, np.array(1.2035, np.float32), "b")
    erf.input[0] = insert(graph, erf, "Mul", [erf.input[0], wide], "wide")
    erf.op_type = "Tanh"


def hard_swish(graph: GraphProto) -> None:
    node(graph, "Sigmoid", "activation").op_type = "HardSigmoid"


def silu_with_slope(graph: GraphProto) -> None:
    """Swish with a slope of 1.0001 instead of 1."""
    sigmoid = node(graph, "Sigmoid", "activation")
    slope = constant(graph, np.array(1.0001, np.float32), "slope")
    sigmoid.input[0] = insert(graph, sigmoid, "Mul", [sigmoid.input[0], slope], "sloped")


def dropout_left_on(graph: GraphProto) -> None:
    """onnxruntime#4589: exported in training mode."""
    relu = node(graph, "Relu", "layers.1")
    rate, on = constant(graph, np.array(0.1, np.float32), "rate"), constant(graph, np.array(True), "training")
    after = list(graph.node)[list(graph.node).index(relu) + 1]
    dropped = insert(graph, after, "Dropout", [relu.output[0], rate, on], "dropped", seed=3)
    rewire(graph, relu.output[0], dropped, besides=dropped)


# --- attention -------------------------------------------------------------------------------------------------------


def softmax_over_queries(graph: GraphProto) -> None:
    set_attribute(node(graph, "Softmax", CROSS), "axis", -2)


def attention_scale_by(factor: float) -> Edit:
    def fault(graph: GraphProto) -> None:
        name = node(graph, "Mul", SELF).input[1]
        planting.set_constant(graph, name, get_constant(graph, name) * np.float32(factor))

    return fault


def heads_merged_in_another_order(graph: GraphProto) -> None:
    for found in graph.node:
        if (
            found.op_type == "Transpose"
            and f"{SELF}/" in found.name
            and helper.get_attribute_value(found.attribute[0]) == [2, 0, 1, 3]
        ):
            last = found
    later = reads(graph, last.output[0])[0]
    later.input[0] = insert(graph, later, "Transpose", [last.output[0]], "turned", perm=[0, 1, 3, 2])


def residual_dropped(graph: GraphProto) -> None:
    bypass(graph, node(graph, "Add", f"{DECODER}.layers.1/"), kept=1)


def final_norm_dropped(graph: GraphProto) -> None:
    bypass(graph, node(graph, "LayerNormalization", f"{DECODER}.norm/"))


# --- the last layer --------------------------------------------------------------------------------------------------


def before_the_output(op_type: str, *values: np.ndarray, **attributes: object) -> Edit:
    """One more operator in front of the last node."""

    def fault(graph: GraphProto) -> None:
        last = next(found for found in graph.node if found.output[0] == "logits")
        names = [constant(graph, value, f"planted_{index}") for index, value in enumerate(values)]
        last.input[0] = insert(graph, last, op_type, [last.input[0], *names], "last", **attributes)

    return fault


def output_scaled_by(factor: float) -> Edit:
    return before_the_output("Mul", np.array(factor, np.float32))


def nan_at_length_one(graph: GraphProto) -> None:
    """(T - 1) / (T - 1), as an average over the pairs of neighbours has it."""
    last = next(found for found in graph.node if found.output[0] == "logits")
    length = insert(graph, last, "Shape", ["tgt"], "target_length", start=1)
    less = insert(graph, last, "Sub", [length, constant(graph, np.array([1], np.int64), "one")], "less")
    number = insert(graph, last, "Cast", [less], "number", to=TensorProto.FLOAT)
    factor = insert(graph, last, "Div", [number, number], "factor")
    last.input[0] = insert(graph, last, "Mul", [last.input[0], factor], "scaled")


ONE_HOT = np.eye(13, dtype=np.float32)[0]


def _row(name: str, kind: str, edit: Edit, checks: frozenset[str] = VALUES, **more: object) -> Fault:
    return Fault(name, kind, in_graph(edit), checks, **more)  # type: ignore[arg-type]


FAULTS = [
    _row("positions from 1", "positions", positions_from_one, place="pos_embedding"),
    _row("positions that end at 40", "positions", positions_end_early, found_by("runtime")),
    _row("positions that start again at 32", "positions", positions_repeat, found_by("rounding")),
    _row("an embedding that is not scaled", "positions", embedding_not_scaled, place="tgt_token_embedding"),
    _row("positions scaled with the embedding", "positions", embedding_scaled_with_positions),
    _row("ids clipped to 11", "positions", ids_clipped),
    *(_row(f"epsilon {value:g}", "epsilon", epsilon(value), place=NORM) for value in (1e-3, 1e-4)),
    *(
        _row(f"epsilon {value:g}", "epsilon", epsilon(value), STRUCTURE, place=NORM, small=True)
        for value in (1e-12, 1.2e-5)
    ),
    *(
        _row(f"{op_type} for ReLU", "activation", activation(op_type), place=ACTIVATION)
        for op_type in ("Tanh", "LeakyRelu", "Identity", "Softplus", "Elu")
    ),
    _row("GELU by tanh", "activation", gelu_by_tanh, **GELU),
    _row("GELU by sigmoid", "activation", gelu_by_sigmoid, **GELU),
    _row(
        "HardSwish for SiLU",
        "activation",
        hard_swish,
        model="last pooling, silu",
        graph="full",
        place="encoder.layers.0.activation",
    ),
    _row(
        "SiLU with a slope of 1.0001",
        "activation",
        silu_with_slope,
        model="last pooling, silu",
        graph="encoder",
        place="encoder.layers.0",  # what the activation is given is not its own
    ),
    _row("dropout left on", "values", dropout_left_on),
    _row("softmax over the queries", "softmax", softmax_over_queries, place=CROSS),
    _row("attention scale of the width, not of the head", "softmax", attention_scale_by(0.5**0.5)),
    _row("attention scale off by 0.1 %", "softmax", attention_scale_by(1.001)),
    _row("attention scale off by 1e-6", "softmax", attention_scale_by(1 + 1e-6), STRUCTURE, small=True),
    _row("heads merged in another order", "values", heads_merged_in_another_order, place=SELF),
    _row("a residual dropped", "values", residual_dropped, place=f"{DECODER}.layers.1"),
    _row("the final norm dropped", "values", final_norm_dropped, found_by("weights", "rounding", "structure")),
    _row("the output scaled by 1 + 1e-5", "values", output_scaled_by(1 + 1e-5)),
    _row("the output scaled by 1 + 1e-7", "values", output_scaled_by(1 + 1e-7), STRUCTURE, small=True),
    _row("log-probabilities for scores", "values", before_the_output("LogSoftmax", axis=-1)),
    _row("scores clipped to 2", "values", before_the_output("Clip", np.array(-2, np.float32), np.array(2, np.float32))),
    _row("the score of the pad id is -inf", "NaN", before_the_output("Add", np.where(ONE_HOT, -np.inf, ONE_HOT))),
    _row("NaN at length 1", "NaN", nan_at_length_one),
]
