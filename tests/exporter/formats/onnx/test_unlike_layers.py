"""Layers that are not alike are noticed and traced one by one; the trace of one layer leaves nothing behind."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from exported_models import shaken, translation
from layered import deep, graph_of
from mytx.exporter import export_bundle
from mytx.exporter.cases.plan import example
from mytx.exporter.formats.onnx import export as onnx_format
from mytx.exporter.formats.onnx import repeat as onnx_layers
from mytx.exporter.formats.onnx import translation as translating
from mytx.exporter.formats.onnx.export import finish, save, to_onnx
from mytx.exporter.formats.onnx.layers import marking, shallow, stacks_of
from mytx.exporter.formats.onnx.repeat import UnlikeError
from mytx.exporter.formats.program import export_program
from mytx.exporter.graphs.graph import Graph
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.quiet import quiet
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime
from mytx.transformer.encoder import MyTransformerEncoderLayer

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


def tensors_in_a_tuple(layers: nn.ModuleList) -> None:
    for layer in layers:
        layer.further = (torch.ones(2),)


def one_and_true(layers: nn.ModuleList) -> None:
    layers[0].further, layers[1].further = (1,), (True,)


def buffers_without_names(layers: nn.ModuleList) -> None:
    for number, layer in enumerate(layers):
        del layer.linear1.bias
        layer.linear1.register_buffer("bias", torch.full((24,), float(number)), persistent=False)


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
    tensors_in_a_tuple,
    one_and_true,
    buffers_without_names,
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


@pytest.mark.parametrize("names", [("a", "b"), ("1", "0")])
def test_layers_with_names_of_their_own_are_noticed(names: tuple[str, str]) -> None:
    model = translation(num_encoder_layers=2)
    encoder = model.my_transformer.encoder
    encoder.layers = nn.Sequential(OrderedDict(zip(names, encoder.layers, strict=True)))  # type: ignore[assignment]
    assert stacks_of(graphs_of(shaken(model))["encoder"]) is None


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


@pytest.mark.parametrize("release", ["has none of them", "has others"])
def test_without_the_exporters_inner_functions_the_public_one_does_it(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_of(translation(num_decoder_layers=2), "decoder")
    with quiet():
        expected = to_onnx(graph)
        if release == "has others":
            other = SimpleNamespace(_exported_program_to_onnx_program=lambda program, other: program)
            monkeypatch.setattr(translating, "_core", other)
        else:
            monkeypatch.setattr(translating, "_core", None)
        found = to_onnx(graph)
    assert Counter(node.op_type for node in expected.graph) <= Counter(node.op_type for node in found.graph)
    assert set(found.graph.initializers) >= set(graph.weights())
    assert [value.name for value in found.graph.outputs] == [value.name for value in expected.graph.outputs]
