"""A graph put together from one layer of each stack is the graph that is traced as a whole."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from exported_models import EVERY_MASK, shaken, translation
from mytx.exporter import export_bundle
from mytx.exporter.cases.plan import example, make_plan
from mytx.exporter.formats.onnx import export as onnx_format
from mytx.exporter.formats.onnx import repeat as onnx_layers
from mytx.exporter.formats.onnx.export import finish, save, to_onnx, whole_to_onnx
from mytx.exporter.formats.onnx.layers import marking, shallow, stacks_of
from mytx.exporter.formats.onnx.repeat import UnlikeError
from mytx.exporter.formats.program import export_program
from mytx.exporter.graphs.decode_graphs import cross_graph
from mytx.exporter.graphs.graph import Graph
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.quiet import quiet
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime, RuntimeOptions
from mytx.models import ClassificationModel, CoupletModel, Model
from mytx.transformer import MyTransformer
from mytx.transformer.encoder import MyTransformerEncoderLayer

Both = tuple[onnx.ModelProto, onnx.ModelProto, Path, Path]
PRE = {"norm_first": True, "activation": "gelu", "bias": False, "final_norm": False}


def graph_of(model: Model, name: str, masks: str | None = None) -> Graph:
    graphs = graphs_of(shaken(model), masks)
    return cross_graph(graphs["step"]) if name == "cross" else graphs[name]


def deep(**changes: Any) -> Model:
    return translation(num_encoder_layers=2, num_decoder_layers=3, **changes)


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


# --- layers that are not alike ---------------------------------------------------------------------------------------


class Subclass(MyTransformerEncoderLayer):
    pass


def wider(layers: nn.ModuleList) -> None:
    layers[1] = MyTransformerEncoderLayer(16, 4, 40)


def another_activation(layers: nn.ModuleList) -> None:
    layers[1] = MyTransformerEncoderLayer(16, 4, 24, activation="gelu")


def another_epsilon(layers: nn.ModuleList) -> None:
    layers[1].norm2.eps = 1e-3


def another_order(layers: nn.ModuleList) -> None:
    layers[1].norm_first = True


def other_heads(layers: nn.ModuleList) -> None:
    layers[1].self_attn.num_heads = 2


def no_bias(layers: nn.ModuleList) -> None:
    layers[1].linear1.bias = None


def subclassed(layers: nn.ModuleList) -> None:
    layers[1].__class__ = Subclass


def all_subclassed(layers: nn.ModuleList) -> None:
    for layer in layers:
        layer.__class__ = Subclass


def replaced(layers: nn.ModuleList) -> None:
    layers[1].activation = nn.Sequential(nn.Tanh())


def hooked(layers: nn.ModuleList) -> None:
    layers[0].linear1.register_forward_hook(lambda module, inputs, output: output * 2)


def parametrized(layers: nn.ModuleList) -> None:
    for layer in layers:
        parametrizations.weight_norm(layer.linear1)


def same_module(layers: nn.ModuleList) -> None:
    layers[1] = layers[0]


def shared_inside(layers: nn.ModuleList) -> None:
    layers[1].self_attn = layers[0].self_attn


def further_attribute(layers: nn.ModuleList) -> None:
    layers[1].number = 1


def another_forward(layers: nn.ModuleList) -> None:
    for layer in layers:
        layer.forward = lambda src, src_mask=None, src_key_padding_mask=None: src


UNLIKE = [
    wider,
    another_activation,
    another_epsilon,
    another_order,
    other_heads,
    no_bias,
    subclassed,
    all_subclassed,
    replaced,
    hooked,
    parametrized,
    same_module,
    shared_inside,
    further_attribute,
    another_forward,
]


def unlike(change: Callable[[nn.ModuleList], None]) -> Graph:
    model = translation(num_encoder_layers=2)
    change(model.my_transformer.encoder.layers)
    return graphs_of(shaken(model))["encoder"]


@pytest.mark.parametrize("change", UNLIKE, ids=lambda change: change.__name__)
def test_layers_that_are_not_alike_are_noticed(change: Callable[[nn.ModuleList], None]) -> None:
    assert stacks_of(unlike(lambda layers: None))
    assert stacks_of(unlike(change)) is None


def test_a_hook_on_all_modules_is_noticed() -> None:
    graph = unlike(lambda layers: None)
    with nn.modules.module.register_module_forward_hook(lambda module, inputs, output: output):
        assert stacks_of(graph) is None
    assert stacks_of(graph)


@pytest.mark.parametrize("change", [wider, another_order], ids=lambda change: change.__name__)
def test_such_a_model_is_traced_layer_by_layer_and_right(
    change: Callable[[nn.ModuleList], None], tmp_path: Path
) -> None:
    graph = unlike(change)
    with quiet():
        model = to_onnx(graph)
    finish(model, graph.contract, {})
    save(model, tmp_path / "encoder.onnx")
    inputs = example(graph.contract).inputs
    found = OnnxRuntime.open(tmp_path / "encoder.onnx").run(inputs)["memory"]
    with torch.no_grad():
        (expected,) = graph.compute({name: torch.from_numpy(array) for name, array in inputs.items()})
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-5)


# --- the trace -------------------------------------------------------------------------------------------------------


def marked(graph: Graph) -> ir.Model:
    """One layer between its marks."""
    first = shallow(graph, stacks_of(graph) or ())
    with quiet(), marking():
        program = export_program(first)
    model = onnx_format.translate(program, 18)
    assert model is not None
    onnx_format._name(model, first)
    return model


def test_the_model_stays_as_it_is_and_no_hook_stays() -> None:
    graph = graph_of(deep(), "encoder")
    before = dict(graph.module.model.named_modules())
    state = copy.deepcopy(graph.module.model.state_dict())
    with pytest.raises(KeyError), marking():
        raise KeyError("interrupted")
    with quiet():
        to_onnx(graph)
    assert dict(graph.module.model.named_modules()) == before
    assert all(torch.equal(state[name], tensor) for name, tensor in graph.module.model.state_dict().items())
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks


def test_an_export_that_is_interrupted_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repeat, called = onnx_layers.repeat_layers, []

    def interrupted(*arguments: Any) -> None:
        called.append(arguments)
        repeat(*arguments)
        if len(called) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(onnx_format, "repeat_layers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_bundle(deep().eval(), tmp_path / "bundle", verify=False)
    assert len(called) == 2
    assert list(tmp_path.iterdir()) == []
    assert not nn.modules.module._global_forward_hooks


def test_the_trace_of_one_layer_is_as_long_whatever_the_number_of_layers() -> None:
    graphs = [graph_of(translation(num_encoder_layers=count), "encoder") for count in (1, 4)]
    lengths = {len(marked(graph).graph) for graph in graphs}
    assert len(lengths) == 1


def test_what_reads_the_inside_of_a_layer_from_behind_it_is_not_repeated() -> None:
    graph = graph_of(deep(), "encoder")
    model = marked(graph)
    inner = next(node for node in model.graph if node.op_type == "Relu").outputs[0]
    last = list(model.graph)[-1]
    late = ir.node("Relu", [inner], name="late")
    model.graph.insert_after(last, [late])
    with pytest.raises(UnlikeError, match="goes on behind its end"):
        onnx_layers.repeat_layers(model, stacks_of(graph) or (), graph.contract, graph.weights())


def test_where_the_parts_do_not_fit_the_model_is_traced_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(deep(), "encoder")

    def refuse(*arguments: object) -> None:
        raise UnlikeError("no")

    monkeypatch.setattr(onnx_format, "repeat_layers", refuse)
    with quiet():
        model = to_onnx(graph)
    assert set(model.graph.initializers) >= set(graph.weights())


def test_without_the_exporters_inner_functions_the_public_one_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(translation(num_decoder_layers=2), "step")
    with quiet():
        expected = to_onnx(graph)
        monkeypatch.setattr(onnx_format, "translate", lambda program, opset: None)
        found = to_onnx(graph)
    assert Counter(node.op_type for node in expected.graph) <= Counter(node.op_type for node in found.graph)
    assert set(found.graph.initializers) >= set(graph.weights())
    assert [value.name for value in found.graph.outputs] == [value.name for value in expected.graph.outputs]
