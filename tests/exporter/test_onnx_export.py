"""What is in the files: names, dimensions, metadata, and nothing of the machine they were made on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from exported_models import KINDS, Exported, shaken
from exported_models import translation as translation_model
from onnx import numpy_helper
from torch import Tensor, nn

from mytx.exporter import ExportError, OptionError, export_bundle, onnx_checks, onnx_format, onnx_stream, runtimes
from mytx.exporter.contract import Axis, Contract, TensorSpec
from mytx.exporter.graph import Graph
from mytx.exporter.graph_modules import GraphModule
from mytx.exporter.onnx_stream import write_model
from mytx.exporter.quiet import quiet
from mytx.exporter.runtimes import OnnxRuntime
from mytx.exporter.verify import small_core

Exports = Callable[[str], Exported]
REPOSITORY = Path(__file__).parents[2]
RUNTIMES = [
    "onnxruntime",
    "onnxruntime, 1 thread",
    "onnxruntime, level extended",
    "onnxruntime, level basic",
    "onnxruntime, level off",
    "onnx.reference",
    "onnx.reference, float64",
]


# --- parity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_graph_of_every_kind_of_model_passes(kind: str, exports: Exports) -> None:
    exported = exports(kind)
    for name in exported.graphs:
        reports = exported.verify(name)
        assert [report.findings for report in reports] == [()] * len(RUNTIMES)
        assert [report.runtime for report in reports] == RUNTIMES
        plan = exported.plan(name)
        core = sum(case.core for case in plan)
        asked = {
            "onnxruntime": len(plan),
            "onnx.reference": sum(small_core(case) for case in plan),
            "onnx.reference, float64": sum(case.small for case in plan),
        }
        assert 8 <= asked["onnx.reference"] < core < asked["onnx.reference, float64"] < len(plan)
        for report in reports:
            exact = report.runtime.endswith("float64")
            assert report.passed
            assert (report.graph, report.format) == (name, "onnx")
            assert report.cases == asked.get(report.runtime, core)
            assert report.compared > 100
            assert report.allowed == (0.1 if exact else 4)
            assert report.worst_ratio < report.allowed


def test_a_file_is_run_at_every_optimisation_level_and_on_one_thread() -> None:
    assert {options.level for options in onnx_checks.OPTIONS} == set(runtimes.LEVELS)
    assert {options.threads for options in onnx_checks.OPTIONS} == {0, 1}
    assert [run.runtime for run in onnx_checks.runs()] == RUNTIMES
    assert [run.lifted for run in onnx_checks.runs()] == [False] * 6 + [True]


@pytest.fixture(scope="module")
def traced() -> list[torch.export.ExportedProgram]:
    """The trace of the full graph: it is half of the time, and does not depend on the opset."""
    return []


@pytest.mark.slow
@pytest.mark.parametrize("opset", onnx_format.OPSETS)
def test_every_opset_passes_when_full_is_exported_as_one(
    opset: int,
    translation: Exported,
    traced: list[torch.export.ExportedProgram],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without composing, which every other test does: that the two agree is seen here too."""
    trace = torch.export.export

    def trace_once(*arguments: Any, **options: Any) -> torch.export.ExportedProgram:
        if not traced:
            traced.append(trace(*arguments, **options))
        return traced[0]

    monkeypatch.setattr(torch.export, "export", trace_once)
    with quiet():
        model = onnx_format.to_onnx(translation.graphs["full"], opset)
    onnx_format.finish(model, translation.contract("full"), {})
    onnx_format.save(model, tmp_path / "full.onnx")
    proto = onnx.load(tmp_path / "full.onnx")
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", opset)]
    # https://github.com/onnx/onnx/blob/main/docs/Versioning.md
    assert proto.ir_version == {18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11, 24: 12, 25: 13}[opset]
    reports = translation.verify("full", tmp_path / "full.onnx")
    assert [report.findings for report in reports] == [()] * len(RUNTIMES)
    direct, composed = OnnxRuntime.open(tmp_path / "full.onnx"), OnnxRuntime.open(translation.path("full"))
    for case, expected in zip(translation.plan("full"), translation.expected("full"), strict=True):
        difference = direct.run(case.inputs)["logits"] - composed.run(case.inputs)["logits"]
        assert np.abs(difference).max() <= 8 * expected["logits"].noise


@pytest.mark.parametrize("opset", [-1, 0, 17, 26, 27])
def test_other_opsets_are_refused(opset: int, translation: Exported) -> None:
    with pytest.raises(OptionError, match=f"opset {opset} is not supported") as caught:
        onnx_format.to_onnx(translation.graphs["encoder"], opset)
    assert caught.value.hint == "choose 18 to 25"


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
        for word in (str(REPOSITORY), str(Path.home()), str(exported.folder), "site-packages", ".py", "stack_trace"):
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


# --- the model that is exported --------------------------------------------------------------------------------------


def test_a_model_in_training_that_ran_at_other_lengths_exports_the_same_file_and_stays_in_training(
    translation: Exported, tmp_path: Path
) -> None:
    model = shaken(translation_model())
    model.load_state_dict(translation.model.state_dict())
    for length in (31, 3):
        model(torch.randint(0, 11, (1, length + 1)), torch.randint(0, 13, (1, length)))
    model.train()
    model.my_transformer.decoder.eval()
    model.my_transformer.decoder.layers[1].dropout1.train()
    modes = {name: module.training for name, module in model.named_modules()}
    assert len(set(modes.values())) == 2

    result = export_bundle(model, tmp_path / "bundle", components=["decoder"])
    assert result.passed
    assert {name: module.training for name, module in model.named_modules()} == modes
    found, expected = (onnx.load(path) for path in (tmp_path / "bundle" / "decoder.onnx", translation.path("decoder")))
    assert found.graph.node == expected.graph.node
    assert {tensor.name: tensor.SerializeToString() for tensor in found.graph.initializer} == {
        tensor.name: tensor.SerializeToString() for tensor in expected.graph.initializer
    }


# --- exports that cannot be right ------------------------------------------------------------------------------------

BATCH, SOURCE, TARGET = Axis("batch", traced=2), Axis("source", traced=7), Axis("target", traced=5)
X = TensorSpec("x", "float32", (BATCH, SOURCE))


class Called(GraphModule):
    """A function of ``x`` as a graph's module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__(nn.Identity())
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def small_graph(function: Callable[[Tensor], Tensor], output: TensorSpec) -> Graph:
    return Graph(Contract("encoder", (X,), (output,), "batch first"), Called(function), ())


def sum_over_source(x: Tensor) -> Tensor:
    return x.sum(1, keepdim=True)


def frozen_batch(x: Tensor) -> Tensor:
    return x.reshape(2, -1) * 2


def twice(x: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            small_graph(sum_over_source, TensorSpec("y", "float32", (BATCH, SOURCE))),
            "source may vary, .* fixed it at 1",
        ),
        (small_graph(frozen_batch, X), "could not export the encoder graph"),
        (small_graph(twice, TensorSpec("y", "int64", (BATCH, SOURCE))), "y came out as FLOAT, the contract says int64"),
        (small_graph(twice, TensorSpec("y", "float32", (BATCH,))), r"y came out with shape .* says \['batch'\]"),
        (small_graph(sum_over_source, TensorSpec("y", "float32", (BATCH, 3))), "dimension of 1, the contract says 3"),
        (small_graph(twice, TensorSpec("y", "float32", (BATCH, TARGET))), "took target and source for one dimension"),
    ],
    ids=["dimension fixed", "dimension refused", "dtype", "rank", "size", "dimensions merged"],
)
def test_a_graph_that_comes_out_other_than_its_contract_is_an_error(graph: Graph, message: str) -> None:
    with quiet(), pytest.raises(ExportError, match=message):
        onnx_format.to_onnx(graph)


def test_a_file_that_is_not_valid_onnx_is_an_error(translation: Exported, tmp_path: Path) -> None:
    model = translation.finished("encoder")
    next(node for node in model.graph if node.op_type == "Softmax").op_type = "Softmacks"
    with pytest.raises(ExportError, match=r"invalid encoder\.onnx.*Softmacks") as caught:
        onnx_format.save(model, tmp_path / "encoder.onnx")
    assert "--opset" in caught.value.hint


# --- writing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_holds_the_same_as_one_that_onnx_ir_writes(kind: str, exports: Exports, tmp_path: Path) -> None:
    exported = exports(kind)
    for name in exported.graphs:
        model = exported.finished(name)
        write_model(model, tmp_path / "ours.onnx")
        ir.save(model, tmp_path / "theirs.onnx")
        ours, theirs = (onnx.load(tmp_path / file) for file in ("ours.onnx", "theirs.onnx"))
        assert len(ours.graph.initializer) > 10
        assert [tensor.name for tensor in ours.graph.initializer] == [t.name for t in theirs.graph.initializer]
        for found, expected in zip(ours.graph.initializer, theirs.graph.initializer, strict=True):
            assert (found.data_type, found.dims) == (expected.data_type, expected.dims)
            assert numpy_helper.to_array(found).tobytes() == numpy_helper.to_array(expected).tobytes()
        names = {tensor.name for tensor in ours.graph.initializer}
        assert {info.name for info in theirs.graph.value_info} <= names  # types and dimensions once more
        theirs.graph.ClearField("value_info")
        for proto in (ours, theirs):
            proto.graph.ClearField("initializer")
        assert ours == theirs
        assert list(model.graph.initializers)  # the model is as it was


@pytest.mark.parametrize("size", [1, 2, 100, 127, 128, 129, 16_383, 16_384, 2_097_151, 2_097_152])
def test_weights_of_every_size_are_read_back(size: int, tmp_path: Path) -> None:
    """Lengths are written seven bits a byte: sizes around where another byte is needed."""
    numbers = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    value = ir.Value(name="w", shape=ir.Shape([size]), type=ir.TensorType(ir.DataType.UINT8))
    value.const_value = ir.tensor(numbers, name="w")
    node = ir.node("Identity", [value])
    node.outputs[0].name = "y"
    node.outputs[0].shape, node.outputs[0].type = value.shape, value.type
    graph = ir.Graph([], node.outputs, nodes=[node], initializers=[value], opset_imports={"": 18}, name="g")
    write_model(ir.Model(graph, ir_version=8), tmp_path / "w.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "w.onnx"), full_check=True)
    assert OnnxRuntime.open(tmp_path / "w.onnx").run({})["y"].tobytes() == numbers.tobytes()


def test_a_file_larger_than_protobuf_allows_is_an_error_before_it_is_written(
    translation: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_stream, "INLINE_LIMIT", 1000)
    with pytest.raises(ExportError, match=r"full\.onnx would have .* GB, a file of ONNX at most 2 GB") as caught:
        onnx_format.save(translation.finished("full"), tmp_path / "full.onnx")
    assert "--weights shared" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_weights_are_in_the_file_where_there_is_no_other(translation: Exported, tmp_path: Path) -> None:
    onnx_format.save(translation.finished("full"), tmp_path / "full.onnx")
    assert list(tmp_path.iterdir()) == [tmp_path / "full.onnx"]
    assert not any(tensor.external_data for tensor in onnx.load(tmp_path / "full.onnx").graph.initializer)


def test_saving_and_composing_leave_the_models_as_they_were(translation: Exported, tmp_path: Path) -> None:
    halves = [translation.raw("encoder"), translation.raw("decoder")]
    before = [ir.to_proto(model).SerializeToString(deterministic=True) for model in halves]
    onnx_format.compose_full(halves[0], halves[1], translation.contract("full"))
    write_model(halves[0], tmp_path / "x.onnx")
    assert [ir.to_proto(model).SerializeToString(deterministic=True) for model in halves] == before


def test_names_of_the_two_halves_do_not_collide_in_the_full_file(translation: Exported) -> None:
    nodes = onnx.load(translation.path("full")).graph.node
    names = [node.name for node in nodes]
    assert len(set(names)) == len(names)
    assert {re.split("/", name)[0] for name in names} == {"encoder", "decoder"}
