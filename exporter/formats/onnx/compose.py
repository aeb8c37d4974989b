"""Graphs that decode, made of exported parts: what comes before the first cached step, and a whole search.

The step is :class:`mytx.models.CachedDecoder`, exported; the search is :mod:`.onnx_search`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from ...contracts.contract import Contract, TensorSpec
from ...graphs.decode_graphs import cross_graph
from ...graphs.graph import Graph
from ...search.loops import add_search
from ...search.nodes import Nodes, Part
from ...search.rounds import Sizes
from . import export as onnx_format
from .export import _is_weight, simplify


def prefill_model(graphs: Mapping[str, Graph], encoder: ir.Model, step: ir.Model, opset: int) -> ir.Model:
    """The ``prefill`` graph out of the encoder and the step.

    Raises:
        ExportError: where PyTorch cannot export what is between the two.
    """
    contract = graphs["prefill"].contract
    sizes = _sizes(graphs["step"].contract)
    op, inputs = Nodes(), _inputs(contract)
    initializers: dict[str, ir.Value] = {}
    (memory,) = Part(encoder, "encoder/").inline(op, inputs, initializers)
    between = onnx_format.to_onnx(cross_graph(graphs["step"]), opset)
    cross = Part(between, "cross/").inline(op, {**inputs, "memory": memory}, initializers)
    batch = op.size(inputs["src"], 0)
    given = {"src_key_padding_mask": inputs["src_key_padding_mask"], "tgt": op.filled(sizes.bos, np.int64, batch, 1)}
    for i, value in enumerate(cross):
        tail = (sizes.head_dim, 0) if i % 2 == 0 else (0, sizes.head_dim)
        given[f"cross_{sizes.name(i)}"] = value
        given[f"past_{sizes.name(i)}"] = op.filled(0, np.float32, batch, 1, sizes.heads, *tail)
    logits, *past = Part(step, "step/").inline(op, given, initializers)
    model = _model(op, contract, inputs, [logits, *cross, *past], initializers, encoder)
    onnx_format.simplify(model)
    for value, spec in zip(model.graph.outputs, contract.outputs, strict=True):
        _described(value, spec)  # where the copies that outputs were have gone
    return model


def search_model(graphs: Mapping[str, Graph], front: ir.Model, step: ir.Model, *, beams: bool) -> ir.Model:
    """The ``generate`` graph, or the ``greedy`` one: the same search with one hypothesis, with less to do.

    All inputs mean what they mean in :class:`mytx.models.Generator`; a number that is out of range is brought into it.

    Args:
        graphs: of the model, by name.
        front: from ids and padding to keys and values of the memory; what else it gives is not used.
        step: one position further.
        beams: whether there can be more than one hypothesis.
    """
    contract = graphs["generate" if beams else "greedy"].contract
    op, inputs = Nodes(), _inputs(contract)
    initializers: dict[str, ir.Value] = {}
    front = front.clone()
    caches = [value for value in front.graph.outputs if (value.name or "").startswith("cross_")]
    front.graph.outputs[:] = caches
    passes.RemoveUnusedNodesPass()(front)  # the first step, so that its weights are the loop's alone
    cross = Part(front, "prefill/").inline(op, inputs, initializers)
    sizes = _sizes(graphs["step"].contract)
    results = add_search(op, sizes, Part(step, "step/"), inputs, cross, initializers)
    model = _model(op, contract, inputs, results, initializers, front)
    passes.RemoveUnusedNodesPass()(model)
    return model


def _sizes(step: Contract) -> Sizes:
    """What a search must know of the model, by the contract of its step."""
    caches = [spec for spec in step.inputs if spec.name.startswith("cross_key_")]
    heads, head_dim = (int(str(size)) for size in caches[0].axes[1:3])
    vocabulary = int(str(step.outputs[0].axes[-1]))
    longest = step.axes["past"].maximum
    assert longest is not None
    return Sizes(
        len(caches), heads, head_dim, vocabulary, longest + 1, step.ids["bos"], step.ids["eos"], step.ids["pad"]
    )


def _inputs(contract: Contract) -> dict[str, ir.Value]:
    """The inputs of a graph.

    Numbers too: as initializers that callers may override they would have their defaults in the file, but
    onnxruntime-node ignores what is given for those, onnxruntime-web refuses it, and OpenVINO makes constants of them.
    """
    return {spec.name: _described(ir.Value(name=spec.name), spec) for spec in contract.inputs}


def _described(value: ir.Value, spec: TensorSpec) -> ir.Value:
    value.name, value.shape, value.dtype = spec.name, ir.Shape(spec.labels), onnx_format.DTYPES[spec.dtype]
    return value


def _model(
    op: Nodes,
    contract: Contract,
    inputs: Mapping[str, ir.Value],
    results: Sequence[ir.Value],
    initializers: Mapping[str, ir.Value],
    like: ir.Model,
) -> ir.Model:
    """What was collected, as a model with the contract's inputs and outputs."""
    outputs = [_described(op("Identity", value), spec) for value, spec in zip(results, contract.outputs, strict=True)]
    graph = ir.Graph(
        list(inputs.values()),
        outputs,
        nodes=op.list,
        initializers=list(initializers.values()),
        opset_imports=dict(like.graph.opset_imports),
        name=contract.graph,
    )
    return ir.Model(graph, ir_version=like.ir_version)


def compose_full(encoder: ir.Model, decoder: ir.Model, contract: Contract) -> ir.Model:
    """The full graph out of the two halves: the encoder's output is the decoder's ``memory``.

    Half the time of exporting it, and the same nodes. An input of the decoder that the full contract lacks
    (``memory_key_padding_mask`` of a model on ids) is the source's.
    """
    encoder, decoder = encoder.clone(), decoder.clone()
    weights = set(encoder.graph.initializers) & set(decoder.graph.initializers)
    _prefix_values(encoder.graph, "encoder/", keep=_weight_names(encoder.graph))
    _prefix_values(decoder.graph, "decoder/", keep=_weight_names(decoder.graph))
    encoder.graph.outputs[0].name = "encoder/memory"
    front = {value.name: value for value in encoder.graph.inputs}
    inputs: list[ir.Value] = []
    replaced = {"memory": encoder.graph.outputs[0]}
    if "memory_key_padding_mask" not in {spec.name for spec in contract.inputs} and "src_key_padding_mask" in front:
        replaced["memory_key_padding_mask"] = front["src_key_padding_mask"]
    for value in list(decoder.graph.inputs):
        if value.name in replaced:
            ir.convenience.replace_all_uses_with(value, replaced[value.name])
        else:
            inputs.append(value)
    for name in weights & _weight_names(decoder.graph):
        ir.convenience.replace_all_uses_with(decoder.graph.initializers[name], encoder.graph.initializers[name])
        del decoder.graph.initializers[name]
    outputs = list(decoder.graph.outputs)
    nodes = [*encoder.graph, *decoder.graph]
    initializers = [*encoder.graph.initializers.values(), *decoder.graph.initializers.values()]
    everything = {value.name: value for value in [*encoder.graph.inputs, *inputs]}
    for half in (encoder.graph, decoder.graph):
        half.inputs.clear()
        half.outputs.clear()
        half.remove(list(half))
        half.initializers.clear()
    graph = ir.Graph(
        [everything[spec.name] for spec in contract.inputs],
        outputs,
        nodes=nodes,
        initializers=initializers,
        opset_imports=dict(encoder.graph.opset_imports),
        name="full",
    )
    model = ir.Model(graph, ir_version=encoder.ir_version)
    simplify(model)
    return model


def _prefix_values(graph: ir.Graph, prefix: str, keep: Iterable[str]) -> None:
    """Put ``prefix`` before every node and every inner name, so that two graphs can become one."""
    kept = {*keep, *(value.name for value in [*graph.inputs, *graph.outputs])}
    for value in list(graph.initializers.values()):
        if value.name not in kept:
            value.name = prefix + (value.name or "")
    for node in graph:
        node.name = prefix + (node.name or "")
        for value in node.outputs:
            if value.name not in kept:
                value.name = prefix + (value.name or "")


def _weight_names(graph: ir.Graph) -> set[str]:
    return {name for name, value in graph.initializers.items() if _is_weight(value)}
