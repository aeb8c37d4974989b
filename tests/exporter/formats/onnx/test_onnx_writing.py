"""ONNX files are written and composed bit for bit, for weights of every size."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from exported_models import KINDS, Exported, Exports
from mytx.exporter import ExportError
from mytx.exporter.formats.onnx import export as onnx_format
from mytx.exporter.formats.onnx import storage
from mytx.exporter.formats.onnx.compose import compose_full
from mytx.exporter.formats.onnx.storage import write_model
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime


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
    monkeypatch.setattr(storage, "INLINE_LIMIT", 1000)
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
    compose_full(halves[0], halves[1], translation.contract("full"))
    write_model(halves[0], tmp_path / "x.onnx")
    assert [ir.to_proto(model).SerializeToString(deterministic=True) for model in halves] == before


def test_names_of_the_two_halves_do_not_collide_in_the_full_file(translation: Exported) -> None:
    nodes = onnx.load(translation.path("full")).graph.node
    names = [node.name for node in nodes]
    assert len(set(names)) == len(names)
    assert {re.split("/", name)[0] for name in names} == {"encoder", "decoder"}
