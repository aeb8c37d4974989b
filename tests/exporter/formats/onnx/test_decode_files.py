"""The ONNX files of graphs that decode: contents, every opset, and inputs at the limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import GraphProto, numpy_helper

from exported_models import Exported, Exports, shaken, translation
from mytx.exporter.contracts.contract import CACHED, SEARCHES, Contract
from mytx.exporter.formats.onnx import files as onnx_files
from mytx.exporter.formats.table import ExportOptions
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.quiet import quiet
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime
from mytx.models import Generator

POSITIONS, LARGEST = 64, 6  # of the translation model: positions, and half of the vocabulary
searches = pytest.mark.parametrize("name", SEARCHES)


@pytest.fixture(scope="module")
def lively(exports: Exports) -> Exported:
    return exports("lively")


def every_graph(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from every_graph(attribute.g)


# --- what they hold --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CACHED)
def test_every_weight_is_there_under_its_name_bit_for_bit_and_no_other_float_tensor(
    name: str, lively: Exported
) -> None:
    """The fused weights are made of them when the file is run."""
    model = onnx.load(lively.path(name))
    weights = {key: tensor.numpy() for key, tensor in lively.every[name].weights().items()}
    tensors = [tensor for part in every_graph(model.graph) for tensor in part.initializer]
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}
    assert len(found) == len(tensors)
    for key, values in weights.items():
        assert found[key].tobytes() == values.tobytes(), key
    for part in every_graph(model.graph):
        for tensor in part.initializer:
            size = int(np.prod(tensor.dims))
            assert tensor.name in weights or size <= 16 or tensor.data_type != onnx.TensorProto.FLOAT
        for node in part.node:
            for attribute in node.attribute:
                assert attribute.t.data_type != onnx.TensorProto.FLOAT or int(np.prod(attribute.t.dims)) <= 16


@searches
def test_numbers_are_plain_inputs_as_every_runtime_takes_them(name: str, lively: Exported) -> None:
    graph = onnx.load(lively.path(name)).graph
    assert not {tensor.name for tensor in graph.initializer} & {value.name for value in graph.input}
    assert [value.name for value in graph.input] == [spec.name for spec in lively.contract(name).inputs]


# --- what they do ----------------------------------------------------------------------------------------------------


def sources(batch: int = 3, length: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(batch + length)
    padding = np.arange(length) >= rng.integers(1, length + 1, (batch, 1))
    return {"src": rng.integers(0, 11, (batch, length)), "src_key_padding_mask": padding}


def number(name: str, value: float) -> np.ndarray:
    return np.array(value, np.float32 if name == "length_penalty" else np.int64)


def whole(contract: Contract, given: dict[str, Any], **numbers: float) -> dict[str, Any]:
    """``given`` with all numbers."""
    defaults = {spec.name: spec.default for spec in contract.inputs if spec.default is not None}
    return {**given, **{key: number(key, value) for key, value in {**defaults, **numbers}.items()}}


def results(lively: Exported, name: str, given: dict[str, Any], **numbers: float) -> dict[str, np.ndarray]:
    return OnnxRuntime.open(lively.path(name)).run(whole(lively.contract(name), given, **numbers))


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    for key, values in one.items():
        np.testing.assert_array_equal(values, other[key])


@searches
@pytest.mark.parametrize(
    ("odd", "meant"),
    [
        ({"max_length": 0}, {"max_length": 1}),
        ({"max_length": -(2**62)}, {"max_length": 1}),
        ({"max_length": 2**62}, {"max_length": POSITIONS}),
        ({"min_length": -5}, {"min_length": 0}),
        ({"max_length": 4, "min_length": 2**62}, {"max_length": 4, "min_length": 4}),
        ({"length_penalty": -2}, {"length_penalty": 0}),
    ],
)
def test_a_number_out_of_range_is_brought_into_it(
    name: str, odd: dict[str, float], meant: dict[str, float], lively: Exported
) -> None:
    given = sources()
    same(results(lively, name, given, **odd), results(lively, name, given, **meant))


@pytest.mark.parametrize(
    ("odd", "meant"),
    [
        ({"num_beams": 0}, {"num_beams": 1}),
        ({"num_beams": -3, "num_hypotheses": 4}, {"num_beams": 1}),
        ({"num_beams": 2**40}, {"num_beams": LARGEST}),
        ({"num_beams": 3, "num_hypotheses": 9}, {"num_beams": 3, "num_hypotheses": 3}),
        ({"num_beams": 3, "num_hypotheses": -1}, {"num_beams": 3, "num_hypotheses": 1}),
    ],
)
def test_beams_and_results_out_of_range_are_brought_into_it(
    odd: dict[str, float], meant: dict[str, float], lively: Exported
) -> None:
    given = sources()
    same(results(lively, "generate", given, **odd), results(lively, "generate", given, **meant))


@searches
def test_without_a_sentence_there_is_no_result_and_no_crash(name: str, lively: Exported) -> None:
    found = results(lively, name, sources(batch=0))
    assert [values.shape for values in found.values()] == [(0, 1, 0), (0, 1), (0, 1)]


def test_without_a_sentence_there_are_as_many_results_of_none_as_were_asked_for(lively: Exported) -> None:
    found = results(lively, "generate", sources(batch=0), num_beams=3, num_hypotheses=2)
    assert [values.shape for values in found.values()] == [(0, 2, 0), (0, 2), (0, 2)]


@searches
def test_every_position_can_be_used(name: str, lively: Exported) -> None:
    """The longest source, and a result that may not end before the last position."""
    given = sources(batch=2, length=POSITIONS)
    found = results(lively, name, given, max_length=POSITIONS, min_length=POSITIONS)
    assert (found["lengths"] == POSITIONS).all()
    assert found["tokens"].shape == (2, 1, POSITIONS)
    assert np.isfinite(found["scores"]).all()
    assert (found["tokens"] != lively.contract(name).ids["eos"]).all()


@searches
def test_a_source_of_one_position_and_one_of_nothing_but_padding_have_a_result(name: str, lively: Exported) -> None:
    for padding in (False, True):
        given = {"src": np.array([[5]]), "src_key_padding_mask": np.array([[padding]])}
        found = results(lively, name, given, max_length=5)
        assert np.isfinite(found["scores"]).all()


@searches
def test_the_same_call_gives_the_same_bits_and_leaves_its_inputs(name: str, lively: Exported) -> None:
    given = whole(lively.contract(name), sources(), max_length=9)
    before = {key: values.copy() for key, values in given.items()}
    runtime = OnnxRuntime.open(lively.path(name))
    same(runtime.run(given), runtime.run(given))
    same(given, before)


@pytest.mark.slow
@pytest.mark.parametrize("opset", [18, 20, 23, 25])
def test_both_searches_are_made_at_every_opset_and_say_the_same(opset: int, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = shaken(translation(num_decoder_layers=1, norm_first=True))
    graphs = graphs_of(model)
    given = sources(batch=4)
    src, padding = (torch.from_numpy(values) for values in given.values())
    with quiet():
        for name in ("encoder", "step", "prefill", *SEARCHES):
            onnx_files.export(graphs, name, tmp_path, ExportOptions(opset, "test"))
    for name, numbers in (("greedy", {}), ("generate", {"num_beams": 3, "num_hypotheses": 2})):
        path = tmp_path / f"{name}.onnx"
        onnx.checker.check_model(str(path), full_check=True)
        (imported,) = onnx.load(path).opset_import
        assert imported.version == opset
        wishes: dict[str, Any] = {"max_length": 9, "length_penalty": 0.5, **numbers}
        found = OnnxRuntime.open(path).run(whole(graphs[name].contract, given, **wishes))
        tokens, lengths, scores, margins = Generator(model).search(src, padding, **wishes)
        assert (margins > 1e-5).all()
        np.testing.assert_array_equal(found["tokens"], tokens.numpy())
        np.testing.assert_array_equal(found["lengths"], lengths.numpy())
        np.testing.assert_allclose(found["scores"], scores.numpy(), rtol=1e-5)
