"""Weights that are not the model's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import GraphProto, TensorProto, numpy_helper

from fault import Fault, found_by
from planting import bypass, change, constant, node, weight
from subject import Subject, in_graph

LAYER = "my_transformer.decoder.layers.0"
SELF = f"{LAYER}.self_attn"
CROSS = "my_transformer.decoder.layers.1.multihead_attn"
VALUES = found_by("weights", "rounding", "structure")
WEIGHTS = found_by("weights")

Change = Callable[[np.ndarray], np.ndarray]


def changed(name: str, function: Change) -> Callable[[Subject], None]:
    return in_graph(lambda graph: change(graph, name, function))


def one_value_off(values: np.ndarray) -> np.ndarray:
    values[3, 5] *= np.float32(1 + 1e-6)
    return values


def one_bit_off(values: np.ndarray) -> np.ndarray:
    values.view(np.int32)[7, 2] ^= 1
    return values


def rounded_to_bfloat16(values: np.ndarray) -> np.ndarray:
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def rounded_to_int8(values: np.ndarray) -> np.ndarray:
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    return np.round(values / scale).astype(np.float32) * scale


def noisy(values: np.ndarray) -> np.ndarray:
    return values + np.float32(1e-4) * np.random.default_rng(1).standard_normal(values.shape).astype(np.float32)


def zero_is_minus_zero(values: np.ndarray) -> np.ndarray:
    assert (values == 0).any()
    return np.where(values == 0, np.float32(-0.0), values)


def row_off(values: np.ndarray) -> np.ndarray:
    values[63] += 1
    return values


def nan_in_a_row(values: np.ndarray) -> np.ndarray:
    values[63] = np.nan
    return values


def swapped(first: str, second: str) -> Callable[[Subject], None]:
    def fault(graph: GraphProto) -> None:
        one, other = weight(graph, first), weight(graph, second)
        one.raw_data, other.raw_data = other.raw_data, one.raw_data

    return in_graph(fault)


def all_stale(graph: GraphProto) -> None:
    """Those of a training step before."""
    for tensor in list(graph.initializer):
        if tensor.data_type == TensorProto.FLOAT and np.prod(tensor.dims) > 1 and not tensor.name.endswith(".pe"):
            change(graph, tensor.name, noisy)


def tied_embedding_broken(graph: GraphProto) -> None:
    """The target side has a copy of its own, which a later training step did not reach."""
    tensor = weight(graph, "token_embedding.embedding.weight")
    copy = numpy_helper.to_array(tensor).copy()
    copy[5] += np.float32(0.01)
    gather = [found for found in graph.node if found.op_type == "Gather" and tensor.name in found.input][-1]
    gather.input[0] = constant(graph, copy, "target_embedding")


def row(name: str, plant: Callable[[Subject], None], checks: frozenset[str], words: str, **more: object) -> Fault:
    return Fault(name, "weights", plant, checks, words=words, **more)  # type: ignore[arg-type]


UNREAD = "is in the file, but no output depends on it"
FOREIGN = "is in the file, but the model has no such weight"
FAULTS = [
    row(
        "one value of a weight off by a millionth",
        changed(f"{SELF}.v_proj.weight", one_value_off),
        found_by("weights", "structure"),
        "v_proj.weight differs from the model in 1 of 256 values",
        place=f"{SELF}.v_proj",
        small=True,
    ),
    row(
        "one bit of a weight flipped",
        changed("classification.weight", one_bit_off),
        WEIGHTS,
        "classification.weight differs from the model in 1 of 208 values",
        place="classification",
        small=True,
    ),
    row(
        "the bias of a key, which cancels in the softmax",
        changed(f"{CROSS}.k_proj.bias", lambda values: values + np.float32(0.25)),
        WEIGHTS,
        "k_proj.bias differs from the model in 16 of 16 values",
        place=f"{CROSS}.k_proj",
        small=True,
    ),
    row(
        "query and key swapped",
        swapped(f"{SELF}.q_proj.weight", f"{SELF}.k_proj.weight"),
        VALUES,
        "k_proj.weight differs",
        place=f"{SELF}.q_proj",
    ),
    row(
        "key and value swapped",
        swapped(f"{CROSS}.k_proj.weight", f"{CROSS}.v_proj.weight"),
        VALUES,
        "v_proj.weight differs",
        place=f"{CROSS}.k_proj",
    ),
    row(
        "a norm of another layer",
        swapped("layers.0.norm3.weight", "layers.1.norm3.weight"),
        VALUES,
        "norm3.weight differs",
        place=f"{LAYER}.norm3",
    ),
    row(
        "a square weight transposed",
        changed(f"{CROSS}.out_proj.weight", lambda values: np.ascontiguousarray(values.T)),
        VALUES,
        "out_proj.weight differs",
        place=f"{CROSS}.out_proj",
    ),
    row(
        "a bias of zeros",
        changed(f"{SELF}.v_proj.bias", np.zeros_like),
        VALUES,
        "v_proj.bias differs from the model in 16 of 16 values",
        place=f"{SELF}.v_proj",
    ),
    row(
        "a bias that is not added",
        in_graph(lambda graph: bypass(graph, node(graph, "Add", f"{SELF}.v_proj/"))),
        VALUES,
        f"v_proj.bias {UNREAD}",
        place=f"{SELF}.v_proj",
    ),
    row(
        "the bias of a key that is not added",
        in_graph(lambda graph: bypass(graph, node(graph, "Add", f"{SELF}.k_proj/"))),
        WEIGHTS,
        f"k_proj.bias {UNREAD}",
        place=f"{SELF}.k_proj",
        small=True,
    ),
    row("all weights a training step old", in_graph(all_stale), VALUES, "linear2.weight differs"),
    row(
        "noise of 1e-4 in one weight",
        changed("layers.1.linear2.weight", noisy),
        VALUES,
        "linear2.weight differs",
        place="my_transformer.decoder.layers.1.linear2",
    ),
    row(
        "a weight rounded to float16",
        changed("layers.0.linear1.weight", lambda values: values.astype(np.float16).astype(np.float32)),
        VALUES,
        "linear1.weight differs",
        place=f"{LAYER}.linear1",
    ),
    row(
        "a weight rounded to bfloat16",
        changed("layers.0.linear2.weight", rounded_to_bfloat16),
        VALUES,
        "linear2.weight differs",
        place=f"{LAYER}.linear2",
    ),
    row(
        "a weight rounded to int8",
        changed("classification.weight", rounded_to_int8),
        VALUES,
        "classification.weight differs",
        place="classification",
    ),
    row(
        "minus zero for zero",
        changed("pos_embedding.pe", zero_is_minus_zero),
        WEIGHTS,
        "pos_embedding.pe differs",
        small=True,
    ),
    row(
        "a row of the positions that no case reaches",
        changed("pos_embedding.pe", row_off),
        WEIGHTS,
        "pos_embedding.pe differs",
        graph="encoder",
        small=True,
    ),
    row(
        "NaN in a row of the positions that no case reaches",
        changed("pos_embedding.pe", nan_in_a_row),
        WEIGHTS,
        "pos_embedding.pe differs",
        graph="encoder",
        small=True,
    ),
    row(
        "a tied embedding that is tied no more",
        in_graph(tied_embedding_broken),
        VALUES,
        f"target_embedding {FOREIGN}",
        model="couplet",
        graph="full",
        place="token_embedding.embedding",
    ),
]
