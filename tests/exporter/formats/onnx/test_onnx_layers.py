"""A graph put together from one layer of each stack is the graph that is traced as a whole."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from exported_models import EVERY_MASK, translation
from layered import deep, graph_of
from mytx.exporter.cases.plan import example, make_plan
from mytx.exporter.formats.onnx.export import finish, save, to_onnx, whole_to_onnx
from mytx.exporter.formats.onnx.layers import stacks_of
from mytx.exporter.graphs.graph import Graph
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.quiet import quiet
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime, RuntimeOptions
from mytx.models import ClassificationModel, CoupletModel, Model
from mytx.transformer import MyTransformer

Both = tuple[onnx.ModelProto, onnx.ModelProto, Path, Path]
PRE = {"norm_first": True, "activation": "gelu", "bias": False, "final_norm": False}


CASES: dict[str, tuple[Callable[[], Model], str, str | None]] = {
    "encoder": (deep, "encoder", None),
    "decoder": (deep, "decoder", None),
    "step": (deep, "step", None),
    "memory's keys and values": (deep, "cross", None),
    "norm first, gelu, no bias, no final norm, decoder": (lambda: deep(**PRE), "decoder", None),
    "norm first, gelu, no bias, no final norm, step": (lambda: deep(**PRE), "step", None),
    "no final norm, encoder of a bare model": (
        lambda: MyTransformer(16, 4, 3, 1, 24, final_norm=False),
        "encoder",
        EVERY_MASK,
    ),
    "a single layer": (lambda: translation(num_decoder_layers=1), "step", None),
    "couplet": (lambda: CoupletModel(13, 16, 4, 2, 2, 24, max_length=40), "step", None),
    "classification": (
        lambda: ClassificationModel(11, 16, 4, 3, 24, 10, 3, pooling="avg", max_length=64),
        "full",
        None,
    ),
    "bare, every mask": (lambda: MyTransformer(16, 4, 1, 2, 24), "decoder", EVERY_MASK),
    "bare, no mask": (lambda: MyTransformer(16, 4, 1, 2, 24), "decoder", ""),
    "no decoder": (lambda: translation(num_encoder_layers=3, num_decoder_layers=0), "encoder", None),
}


@pytest.fixture(scope="module", params=CASES)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, Both]:
    """A graph; its file from one layer, and from all of them."""
    torch.manual_seed(3)
    make, name, masks = CASES[request.param]
    graph, folder = graph_of(make(), name, masks), tmp_path_factory.mktemp("both")
    paths = []
    with quiet():
        for kind, export in (("assembled", to_onnx), ("whole", whole_to_onnx)):
            model = export(graph)
            finish(model, graph.contract, {"mytx.version": "0"})
            save(model, folder / f"{kind}.onnx")
            paths.append(folder / f"{kind}.onnx")
    return graph, (onnx.load(paths[0]), onnx.load(paths[1]), *paths)


def reads_weights(model: onnx.ModelProto, weights: set[str]) -> Counter[tuple[str, ...]]:
    """For each node that reads weights its type, and which they are."""
    nodes = ((node.op_type, *(name for name in node.input if name in weights)) for node in model.graph.node)
    return Counter(found for found in nodes if len(found) > 1)


def scopes(model: onnx.ModelProto) -> Counter[str]:
    """The names without numbers; some of the exporter's own begin with ``node_``."""
    return Counter(re.sub(r"^node_|_\d+$", "", node.name) for node in model.graph.node)


def test_both_files_say_the_same_of_themselves(both: tuple[Graph, Both]) -> None:
    graph, (assembled, whole, *_) = both
    assert stacks_of(graph), "it was traced as a whole"
    assert assembled.graph.input == whole.graph.input
    assert assembled.graph.output == whole.graph.output
    assert assembled.metadata_props == whole.metadata_props
    assert assembled.opset_import == whole.opset_import
    assert assembled.ir_version == whole.ir_version
    assert assembled.producer_name == whole.producer_name


def test_both_hold_the_same_weights_and_read_them_in_the_same_places(both: tuple[Graph, Both]) -> None:
    graph, (assembled, whole, *_) = both
    weights = set(graph.weights())
    one, other = (
        {tensor.name: tensor for tensor in model.graph.initializer if tensor.name in weights}
        for model in (assembled, whole)
    )
    assert one == other
    assert reads_weights(assembled, weights) == reads_weights(whole, weights)


def test_there_are_no_more_nodes_and_they_have_the_same_names_but_for_their_numbers(both: tuple[Graph, Both]) -> None:
    _, (assembled, whole, *_) = both
    assert len(assembled.graph.node) <= len(whole.graph.node)
    assert scopes(assembled) <= scopes(whole)
    names = [node.name for node in assembled.graph.node]
    assert len(set(names)) == len(names)
    values = [name for node in assembled.graph.node for name in node.output]
    assert len(set(values)) == len(values)


def test_both_give_the_same_bits(both: tuple[Graph, Both]) -> None:
    graph, (*_, one, other) = both
    options = RuntimeOptions(threads=1)
    first, second = OnnxRuntime.open(one, options), OnnxRuntime.open(other, options)
    plan = [example(graph.contract), *make_plan(graph.contract)[:6]]
    for case in plan:
        found, expected = first.run(case.inputs), second.run(case.inputs)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=f"{case.name}: {name}")


# --- weights are found by their names --------------------------------------------------------------------------------


def test_layers_that_are_equal_still_have_each_its_own_weights() -> None:
    model = deep().eval()  # new: all norms are 1 and 0
    layers = model.my_transformer.encoder.layers
    layers[1].load_state_dict(layers[0].state_dict())
    layers[1].linear1.weight = layers[0].linear1.weight
    graph = graphs_of(model)["encoder"]
    with quiet():
        assembled = to_onnx(graph)
    weights = set(graph.weights())
    assert stacks_of(graph)
    read = [value.name for node in assembled.graph for value in node.inputs if value is not None]
    assert {name for name in read if name in weights} == weights
    for name in weights:
        value = assembled.graph.initializers[name]
        assert value.const_value is not None
        np.testing.assert_array_equal(value.const_value.numpy(), graph.weights()[name].numpy())
    for node in assembled.graph:
        layer = {name.split(".")[3] for value in node.inputs if value and ".layers." in (name := value.name or "")}
        assert len(layer) <= 1
