"""What tools that rewrite ONNX files get wrong: fusions, folded shapes, merged weights, smaller dtypes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.transformers.float16 import convert_float_to_float16
from onnxruntime.transformers.onnx_model import OnnxModel

from fault import Fault, found_by
from fault_values import epsilon
from planting import bypass, constant, insert, node, reads, rewire, weight
from subject import Subject, in_graph

DECODER = "my_transformer.decoder"
SELF = f"{DECODER}.layers.0.self_attn"
CROSS = f"{DECODER}.layers.1.multihead_attn"
VALUES, STRUCTURE = found_by("rounding", "structure"), found_by("structure")
ALL = found_by("weights", "rounding", "structure")

Edit = Callable[[GraphProto], None]


def gemm_without_transpose(name: str) -> Edit:
    """A square weight needs no Transpose to fit."""

    def fault(graph: GraphProto) -> None:
        bypass(graph, node(graph, "Transpose", f"{name}/"))

    return fault


def norm_and_residual_fused_wrongly(graph: GraphProto) -> None:
    """SkipLayerNormalization whose sum goes on: the next residual reads the norm's input, not its output."""
    norm = node(graph, "LayerNormalization", f"{DECODER}.layers.1.norm2/")
    later = next(found for found in reads(graph, norm.output[0]) if found.op_type == "Add")
    later.input[list(later.input).index(norm.output[0])] = norm.input[0]


def norm_decomposed_in_float16(graph: GraphProto) -> None:
    """The epsilon of 1e-5 is about that of float16: a variance near 0 divides by 0."""
    norm = node(graph, "LayerNormalization", f"{DECODER}.norm/")
    half = insert(graph, norm, "Cast", [norm.input[0]], "half_input", to=TensorProto.FLOAT16)
    names = [half]
    for index in (1, 2):
        names.append(insert(graph, norm, "Cast", [norm.input[index]], f"half_{index}", to=TensorProto.FLOAT16))
    for index, name in enumerate(names):
        norm.input[index] = name
    output = norm.output[0]
    norm.output[0] = "half_norm"
    later = next(found for found in graph.node if output in found.input)
    graph.node.insert(
        list(graph.node).index(later),
        helper.make_node("Cast", ["half_norm"], [output], "planted/whole", to=TensorProto.FLOAT),
    )


def biases_merged(graph: GraphProto) -> None:
    """Two initializers that are nearly equal become one."""
    rewire(graph, weight(graph, f"{SELF}.v_proj.bias").name, weight(graph, f"{SELF}.q_proj.bias").name)


def norms_merged(graph: GraphProto) -> None:
    """Two nodes of one type, one weight and nearly one input: a common subexpression that is none."""
    first = node(graph, "LayerNormalization", f"{DECODER}.layers.1.norm1/")
    second = node(graph, "LayerNormalization", f"{DECODER}.layers.1.norm2/")
    bypassed = second.output[0]
    graph.node.remove(second)
    rewire(graph, bypassed, first.output[0])


def redundant_cast_dropped(graph: GraphProto) -> None:
    bypass(graph, node(graph, "Cast", f"{SELF}/"))


def redundant_where_dropped(graph: GraphProto) -> None:
    """The one that sets a row without keys to zero."""
    closed = next(found for found in graph.node if found.op_type == "Where" and found.output[0] == "masked_fill_3")
    bypass(graph, closed, kept=2)


def transposes_cancelled(graph: GraphProto) -> None:
    """The one that puts the heads back beside each other, taken for the inverse of another."""
    bypass(graph, node(graph, "Transpose", f"{SELF}/", perm=[2, 0, 1, 3]))


def shape_folded(graph: GraphProto) -> None:
    """The length of the target, as the traced example had it, in the range that the causal mask is made of."""
    node(graph, "Range").input[1] = constant(graph, np.array(5, np.int64))


def batch_folded(graph: GraphProto) -> None:
    """Shape -> Squeeze of the batch, as the traced example had it."""
    shape = node(graph, "Concat", f"{SELF}/")  # of the heads: length, batch, heads, width
    batch = next(found for found in graph.node if found.output[0] == shape.input[1])
    rewire(graph, batch.input[0], constant(graph, np.array(2, np.int64)))


def attention_fused_without_mask(graph: GraphProto) -> None:
    softmax = node(graph, "Softmax", f"{CROSS}/")
    bypass(graph, next(found for found in graph.node if found.output[0] == softmax.input[0]))


def attention_fused_with_two_scales(graph: GraphProto) -> None:
    softmax = node(graph, "Softmax", f"{SELF}/")
    half = constant(graph, np.array(0.5, np.float32), "scale")
    softmax.input[0] = insert(graph, softmax, "Mul", [softmax.input[0], half], "twice")


def softmax_of_opset_12(graph: GraphProto) -> None:
    """Its axis begins the part that is normalised as a whole: without a change of the number it is another function."""
    softmax = node(graph, "Softmax", f"{CROSS}/")
    shape = insert(graph, softmax, "Shape", [softmax.input[0]], "scores_shape")
    flat = insert(graph, softmax, "Flatten", [softmax.input[0]], "flat", axis=2)
    weights = insert(graph, softmax, "Softmax", [flat], "flat_weights", axis=-1)
    softmax.op_type = "Reshape"
    del softmax.attribute[:]
    softmax.input[0] = weights
    softmax.input.append(shape)


def bias_added_twice(graph: GraphProto) -> None:
    """A bias that is folded into the residual before it, and added once more by the fused node."""
    add = node(graph, "Add", f"{DECODER}.layers.1.linear2/")
    bias = next(name for name in add.input if name.endswith("bias"))
    later = reads(graph, add.output[0])[0]
    later.input[list(later.input).index(add.output[0])] = insert(graph, later, "Add", [add.output[0], bias], "again")


def relu_moved(graph: GraphProto) -> None:
    """In front of the bias instead of behind it."""
    relu, add = node(graph, "Relu", "layers.1"), node(graph, "Add", f"{DECODER}.layers.1.linear1/")
    position = next(index for index, name in enumerate(add.input) if not name.endswith("bias"))
    add.input[position] = insert(graph, add, "Relu", [add.input[position]], "early")
    bypass(graph, relu)


def quantised(subject: Subject) -> None:
    """As onnxruntime does it: dynamic int8."""
    quantize_dynamic(subject.path, subject.path, extra_options={"DefaultTensorType": TensorProto.FLOAT})


def halved(model: onnx.ModelProto) -> None:
    """As onnxruntime's converter does it: float16 inside, float32 at the edges."""
    half = OnnxModel(convert_float_to_float16(model, keep_io_types=True))
    half.topological_sort()  # the converter leaves that to others
    model.CopyFrom(half.model)


def out_of_order(graph: GraphProto) -> None:
    """As some converters leave it: onnxruntime sorts the nodes itself, others need not."""
    first = graph.node[0]
    graph.node.append(first)
    del graph.node[0]


def weight_folded(graph: GraphProto) -> None:
    """A Transpose computed beforehand, its result rounded on the way: float16 storage."""
    transpose = node(graph, "Transpose", f"{DECODER}.layers.0.linear2/")
    values = numpy_helper.to_array(weight(graph, f"{DECODER}.layers.0.linear2.weight")).T.astype(np.float16)
    folded = constant(graph, np.ascontiguousarray(values), "val_13")
    found: NodeProto = reads(graph, transpose.output[0])[0]
    found.input[1] = insert(graph, found, "Cast", [folded], "unfolded", to=TensorProto.FLOAT)
    graph.node.remove(transpose)


def _row(name: str, edit: Edit, checks: frozenset[str] = VALUES, **more: object) -> Fault:
    return Fault(name, "rewrites", in_graph(edit), checks, **more)  # type: ignore[arg-type]


FAULTS = [
    _row("a norm fused without its epsilon", epsilon(0.0), STRUCTURE, place=f"{DECODER}.layers.1.norm2", small=True),
    _row("a square weight without its transpose", gemm_without_transpose(f"{SELF}.k_proj"), place=f"{SELF}.k_proj"),
    _row("a norm and a residual fused wrongly", norm_and_residual_fused_wrongly, place=f"{DECODER}.layers.1"),
    _row("the final norm in float16", norm_decomposed_in_float16, place=DECODER),
    _row("two biases merged", biases_merged, ALL, place=f"{SELF}.v_proj", words="v_proj.bias is in the file, but no"),
    _row("two norms merged", norms_merged, ALL, words="norm2.weight is in the file, but no output"),
    _row("a Cast dropped", redundant_cast_dropped, found_by("runtime", "rounding"), small=True),
    _row("a Where dropped", redundant_where_dropped, place=SELF),
    _row("two transposes cancelled", transposes_cancelled, place=SELF),
    _row("a shape folded", shape_folded, found_by("runtime")),
    _row("the batch folded", batch_folded, found_by("runtime")),
    _row("attention fused without its mask", attention_fused_without_mask, place=CROSS),
    _row("attention fused with two scales", attention_fused_with_two_scales, place=SELF),
    _row("softmax of opset 12", softmax_of_opset_12, place=CROSS),
    _row("a bias fused twice", bias_added_twice),
    _row("a ReLU in front of the bias", relu_moved),
    _row("a folded weight stored as float16", weight_folded, ALL, words="val_13 is in the file"),
    _row("nodes out of order", out_of_order, found_by("runtime", "rounding", "structure")),
    Fault("dynamic int8 by onnxruntime", "rewrites", quantised, ALL | found_by("runtime")),
    Fault("float16 by onnxruntime", "rewrites", lambda subject: subject.edit(halved), ALL),
]
