"""Weights are read from a file one at a time, and are those that onnx reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

from bundles import tiny_bundle
from mytx.exporter.formats.onnx.storage import Weights, read_model, read_values


@pytest.mark.parametrize("name", ["encoder", "decoder", "full"])
def test_what_is_read_in_pieces_is_what_onnx_reads_at_once(name):
    path = tiny_bundle() / f"{name}.onnx"
    graph, tensors = read_model(path)
    whole = onnx.load(path).graph
    assert list(tensors) == list(whole.initializer)
    del whole.initializer[:]
    assert graph == whole
    assert len(graph.node) > 10


def test_weights_in_a_second_file_are_read_too(tmp_path):
    model = onnx.load(tiny_bundle() / "encoder.onnx")
    expected = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    convert_model_to_external_data(model, location="weights", size_threshold=0)
    onnx.save(model, tmp_path / "encoder.onnx")
    path = tmp_path / "encoder.onnx"
    found = {tensor.name: read_values(tensor, path) for tensor in read_model(path)[1]}
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    weights = Weights(path)
    assert weights.keys() == expected.keys()
    assert len(weights) == len(expected)
    assert all(np.array_equal(weights[name], expected[name]) for name in expected)


def test_large_weights_are_read_when_they_are_asked_for(tmp_path, monkeypatch):
    path = tiny_bundle() / "encoder.onnx"
    weights = Weights(path)
    expected = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    large = [name for name, array in expected.items() if array.nbytes > 600]
    assert 0 < len(large) < len(expected)
    assert all(np.array_equal(weights[name], expected[name]) for name in expected)
    assert weights[large[0]] is not weights[large[0]]
    with pytest.raises(KeyError):
        weights["nothing"]


def read_all(path: Path) -> None:
    list(read_model(path)[1])


@pytest.mark.parametrize("part", [0.001, 0.3, 0.9, 0.9999])
def test_a_truncated_file_is_an_error(part, tmp_path):
    data = (tiny_bundle() / "encoder.onnx").read_bytes()
    (tmp_path / "cut.onnx").write_bytes(data[: int(len(data) * part)])
    with pytest.raises(Exception, match=r"truncated|wire type|parsing"):
        read_all(tmp_path / "cut.onnx")
