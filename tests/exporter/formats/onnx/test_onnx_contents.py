"""The contents of an ONNX file: weights, names, dimensions, metadata, and no path of the machine that made it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from exported_models import KINDS, Exported, Exports
from exported_models import translation as translation_model
from mytx.exporter.contracts.contract import Contract
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime
from repository import ROOT

# --- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_weights_stand_under_their_state_dict_names_bit_for_bit(kind: str, exports: Exports) -> None:
    exported = exports(kind)
    state = {name: tensor.numpy() for name, tensor in exported.model.state_dict().items()}
    seen = set()
    for name in exported.graphs:
        initializers = onnx.load(exported.path(name)).graph.initializer
        assert len({tensor.name for tensor in initializers}) == len(initializers)
        large = {tensor.name for tensor in initializers if np.prod(tensor.dims) > 16}
        assert large <= set(state)
        for tensor in initializers:
            if tensor.name in state:
                found = numpy_helper.to_array(tensor)
                assert found.dtype == state[tensor.name].dtype
                assert found.shape == state[tensor.name].shape
                assert found.tobytes() == state[tensor.name].tobytes()
                seen.add(tensor.name)
    assert seen == set(state)


def test_a_weight_that_both_halves_read_is_in_the_full_file_once(exports: Exports) -> None:
    names = [tensor.name for tensor in onnx.load(exports("couplet").path("full")).graph.initializer]
    for name in ("token_embedding.embedding.weight", "pos_embedding.pe"):
        assert names.count(name) == 1


def test_equal_weights_are_not_merged(tmp_path: Path) -> None:
    """Initial norms are all 1 and biases all 0: each still has its own name in the file."""
    model = translation_model(num_decoder_layers=1).eval()
    exported = Exported(model, None, tmp_path)
    found = {tensor.name for tensor in onnx.load(exported.path("encoder")).graph.initializer}
    assert set(exported.weights("encoder")) <= found
    assert all(report.passed for report in exported.verify("encoder"))


# --- what else a file says -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_and_outputs_are_the_contracts_with_every_dimension_that_varies(kind: str, exports: Exports) -> None:
    exported = exports(kind)
    types = {"float32": onnx.TensorProto.FLOAT, "int64": onnx.TensorProto.INT64, "bool": onnx.TensorProto.BOOL}
    for name in exported.graphs:
        graph, contract = onnx.load(exported.path(name)).graph, exported.contract(name)
        for values, specs in ((graph.input, contract.inputs), (graph.output, contract.outputs)):
            assert [value.name for value in values] == [spec.name for spec in specs]
            for value, spec in zip(values, specs, strict=True):
                tensor = value.type.tensor_type
                assert tensor.elem_type == types[spec.dtype]
                dims = [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]
                assert dims == list(spec.labels)
                assert value.doc_string == spec.meaning


@pytest.mark.parametrize("kind", KINDS)
def test_metadata_holds_the_contract_the_ids_and_the_polarity_of_every_mask(kind: str, exports: Exports) -> None:
    exported = exports(kind)
    for name in exported.graphs:
        contract = exported.contract(name)
        session = onnxruntime.InferenceSession(exported.path(name), providers=["CPUExecutionProvider"])
        found = session.get_modelmeta().custom_metadata_map
        assert all(key.startswith("mytx.") for key in found)
        assert Contract.from_dict(json.loads(found["mytx.contract"])) == contract
        assert (found["mytx.graph"], found["mytx.layout"]) == (name, contract.layout)
        assert found["mytx.version"] == "0.0.0"
        ids = {key: int(value) for key, value in found.items() if key.endswith("_id")}
        assert ids == {f"mytx.{key}_id": value for key, value in contract.ids.items()}
        polarity = {key.removeprefix("mytx.polarity."): value for key, value in found.items() if "polarity" in key}
        assert polarity == {spec.name: spec.meaning for spec in contract.inputs if spec.name.endswith("mask")}
        longest = {axis.maximum for axis in contract.axes.values() if axis.maximum}
        assert found.get("mytx.max_length") == (str(*longest) if longest else None)


@pytest.mark.parametrize("kind", KINDS)
def test_no_path_or_source_line_of_the_machine_is_in_a_file(kind: str, exports: Exports) -> None:
    exported = exports(kind)
    for name in exported.graphs:
        proto = onnx.load(exported.path(name))
        for tensor in proto.graph.initializer:
            tensor.ClearField("raw_data")  # random bytes spell anything, sooner or later
        content = proto.SerializeToString()
        assert b"src_key_padding_mask" in content or b"tgt_key_padding_mask" in content
        for word in (str(ROOT), str(Path.home()), str(exported.folder), "site-packages", ".py", "stack_trace"):
            assert word.encode() not in content
        values = [*proto.graph.input, *proto.graph.output]
        assert not any(thing.metadata_props for thing in [proto.graph, *proto.graph.node, *values])
        assert not any(node.doc_string for node in proto.graph.node)
        assert (proto.producer_name, proto.producer_version, proto.doc_string) == ("mytx", "0.0.0", "")
        assert proto.graph.name == name
        assert not proto.graph.value_info
        assert not proto.functions


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_no_dropout_and_only_standard_operators(kind: str, exports: Exports) -> None:
    exported = exports(kind)
    for name in exported.graphs:
        nodes = onnx.load(exported.path(name)).graph.node
        operators = {node.op_type for node in nodes}
        assert operators >= {"MatMul", "Softmax", "LayerNormalization"}
        assert not {operator for operator in operators if "Dropout" in operator or "Random" in operator}
        assert {node.domain for node in nodes} <= {"", "ai.onnx"}


def test_two_runs_are_bit_for_bit_equal(translation: Exported) -> None:
    for name in translation.graphs:
        runtime = OnnxRuntime.open(translation.path(name))
        case = translation.plan(name)[1]
        first, second = (runtime.run(case.inputs) for _ in range(2))
        assert all(first[key].tobytes() == second[key].tobytes() for key in first)


@pytest.mark.parametrize("kind", ["translation", "norm first, gelu, no bias"])
def test_node_names_lead_back_to_the_modules_of_the_model(kind: str, exports: Exports) -> None:
    exported = exports(kind)
    modules = dict(exported.model.named_modules())
    for name in ("encoder", "decoder"):
        scopes = {node.name.rpartition("/")[0] for node in onnx.load(exported.path(name)).graph.node} - {""}
        assert scopes <= set(modules)
        assert f"my_transformer.{name}.layers.0.self_attn.q_proj" in scopes


@pytest.mark.parametrize("kind", ["translation", "norm first, gelu, no bias"])
def test_no_shape_in_a_file_holds_a_traced_length(kind: str, exports: Exports) -> None:
    """Traced: batch 2, source 7, target 5; 4 heads and 4 wide each, so that neither is one of them."""
    exported = exports(kind)
    frozen = {2, 7, 5, 2 * 4, 2 * 7, 2 * 5, 2 * 4 * 7, 2 * 4 * 5, 2 * 7 * 16, 2 * 5 * 16}
    for name in exported.graphs:
        graph = onnx.load(exported.path(name)).graph
        numbers = set(shape_numbers(graph))
        assert {4, 16, -1} <= numbers
        assert not numbers & frozen


def shape_numbers(graph: onnx.GraphProto) -> Iterator[int]:
    """The constants that end up in the shape of a Reshape or Expand, by way of any Concat."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    made = {output: node for node in graph.node for output in node.output}
    for node in graph.node:
        if node.op_type == "Constant":
            value = onnx.helper.get_attribute_value(node.attribute[0])
            constants[node.output[0]] = (
                numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.array(value)
            )
    waiting = [node.input[1] for node in graph.node if node.op_type in ("Reshape", "Expand")]
    while waiting:
        name = waiting.pop()
        if name in constants:
            yield from constants[name].ravel().tolist()
        elif name in made and made[name].op_type == "Concat":
            waiting += made[name].input
