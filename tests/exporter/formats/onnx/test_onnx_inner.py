"""Weights in the body of a loop count as the file's: they are read, checked, and shared as all others are."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, numpy_helper

from exported_models import Exported
from mytx.exporter.bundle.integrity import _external_problems
from mytx.exporter.formats.onnx.export import save
from mytx.exporter.formats.onnx.shared_weights import WEIGHTS, write_weights
from mytx.exporter.formats.onnx.storage import Weights, read_model, read_values
from mytx.exporter.parity.onnx_weights import check_weights
from mytx.exporter.runtimes.onnx_reference import OnnxReference
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime, RuntimeOptions
from planting import all_graphs, weight
from planting_loops import body_of
from repository import ROOT

LINEAR = "my_transformer.decoder.layers.1.linear2.weight"
SEARCHES = ("greedy", "generate")
searches = pytest.mark.parametrize("name", SEARCHES)


@pytest.fixture(scope="module")
def lively(exports: Callable[[str], Exported]) -> Exported:
    return exports("lively")


@pytest.fixture(scope="module")
def shared(lively: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the searches and their weights beside them, all but the smallest."""
    folder = tmp_path_factory.mktemp("shared")
    write_weights(folder, {name: lively.weights(name) for name in SEARCHES})
    for name in SEARCHES:
        save(lively.finished(name), folder / f"{name}.onnx")
    return folder


def numbers(lively: Exported, name: str) -> dict[str, Any]:
    given = {"max_length": 9, "min_length": 2, "num_beams": 3, "num_hypotheses": 2, "length_penalty": 1.0}
    taken = {spec.name: spec.dtype for spec in lively.contract(name).inputs}
    return {key: np.array(value, taken[key]) for key, value in given.items() if key in taken}


def inputs(lively: Exported, name: str) -> dict[str, Any]:
    src = np.array([[3, 4, 5, 6], [7, 8, 0, 0]])
    return {"src": src, "src_key_padding_mask": src == 0, **numbers(lively, name)}


def edited(lively: Exported, name: str, folder: Path, edit: Callable[[GraphProto], None]) -> Path:
    model = onnx.load(lively.path(name))
    edit(model.graph)
    onnx.save(model, folder / f"{name}.onnx")
    return folder / f"{name}.onnx"


@searches
def test_what_is_read_of_a_file_has_the_weights_of_its_loops(name: str, lively: Exported) -> None:
    path = lively.path(name)
    graph, tensors = read_model(path)
    found = {tensor.name: read_values(tensor, path) for tensor in tensors}
    assert not any(part.initializer for part in all_graphs(graph))
    inside = body_of(onnx.load(path).graph, "steps").initializer
    assert LINEAR in {tensor.name for tensor in inside}
    weights = Weights(path)
    assert weights.keys() == found.keys()
    for key, expected in lively.weights(name).items():
        np.testing.assert_array_equal(found[key], expected)
        np.testing.assert_array_equal(weights[key], expected)


def test_a_name_that_stands_twice_stays_where_it_is_and_is_no_weight_of_the_model(
    lively: Exported, tmp_path: Path
) -> None:
    def shadow(graph: GraphProto) -> None:
        tensor = graph.initializer.add()
        tensor.CopyFrom(weight(graph, LINEAR))

    path = edited(lively, "greedy", tmp_path, shadow)
    graph, tensors = read_model(path)
    assert [tensor.name for tensor in tensors].count(LINEAR) == 1
    assert LINEAR in {tensor.name for tensor in body_of(graph, "steps").initializer}
    problems = check_weights(path, lively.weights("greedy"))
    assert any(problem.startswith(f"{LINEAR} is in the file, but the model has no such weight") for problem in problems)


@pytest.mark.parametrize("change", ["a bit", "its name", "gone"])
def test_a_wrong_weight_in_the_body_is_found(change: str, lively: Exported, tmp_path: Path) -> None:
    def edit(graph: GraphProto) -> None:
        body = body_of(graph, "steps")
        tensor = weight(body, LINEAR)
        if change == "a bit":
            values = numpy_helper.to_array(tensor).copy()
            values.view(np.uint32)[3, 2] ^= 1
            tensor.CopyFrom(numpy_helper.from_array(values, LINEAR))
        elif change == "its name":
            tensor.name = "another"
        else:
            body.initializer.remove(tensor)

    problems = check_weights(edited(lively, "greedy", tmp_path, edit), lively.weights("greedy"))
    expected = f"{LINEAR} differs from the model in 1 of" if change == "a bit" else f"{LINEAR} is not in the file"
    assert any(problem.startswith(expected) for problem in problems)
    assert check_weights(lively.path("greedy"), lively.weights("greedy")) == []


def test_weights_of_a_loop_in_a_file_that_nobody_listed_are_refused(lively: Exported, tmp_path: Path) -> None:
    def outside(graph: GraphProto) -> None:
        for copies in (1, 2):  # where the name stands twice, too
            tensor = weight(body_of(graph, "steps"), LINEAR)
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=f"../secret{copies}")
        graph.initializer.add().CopyFrom(numpy_helper.from_array(np.zeros(2, np.float32), LINEAR))

    path = edited(lively, "greedy", tmp_path, outside)
    assert any("'../secret1', which is not listed" in problem for problem in _external_problems(path, set()))


# --- weights.bin -----------------------------------------------------------------------------------------------------


@searches
def test_what_weights_bin_holds_is_referred_to_by_the_outermost_graph_alone(
    name: str, lively: Exported, shared: Path
) -> None:
    graph = onnx.load(shared / f"{name}.onnx", load_external_data=False).graph
    outer, *inner = all_graphs(graph)
    assert LINEAR in {tensor.name for tensor in outer.initializer if tensor.external_data}
    assert not any(tensor.external_data for part in inner for tensor in part.initializer)
    names = [tensor.name for part in all_graphs(graph) for tensor in part.initializer]
    assert len(set(names)) == len(names)
    assert set(lively.weights(name)) <= set(names)
    assert check_weights(shared / f"{name}.onnx", lively.weights(name)) == []
    large = sum(tensor.nbytes for tensor in lively.weights(name).values() if tensor.nbytes >= 1024)
    assert (shared / f"{name}.onnx").stat().st_size < lively.path(name).stat().st_size - 0.8 * large


@searches
@pytest.mark.parametrize("level", ["off", "all"])
def test_both_ways_to_store_weights_give_the_same(name: str, level: str, lively: Exported, shared: Path) -> None:
    given, options = inputs(lively, name), RuntimeOptions(level, threads=1)
    one = OnnxRuntime.open(lively.path(name), options).run(given)
    other = OnnxRuntime.open(shared / f"{name}.onnx", options).run(given)
    for key, array in one.items():  # without optimisation nothing is packed: sums are taken in another order
        np.testing.assert_allclose(other[key], array, rtol=1e-6 if array.dtype == np.float32 else 0)
    exact = OnnxReference.open(shared / f"{name}.onnx", lifted=True).run(given)
    np.testing.assert_array_equal(exact["tokens"], one["tokens"])


@searches
def test_onnxruntime_makes_constants_of_the_body_of_them(name: str, shared: Path, tmp_path: Path) -> None:
    """Which it packs: no product inside reads a weight from outside."""
    OnnxRuntime.open(shared / f"{name}.onnx", RuntimeOptions("extended"), optimized=tmp_path / "optimized.onnx")
    body = body_of(onnx.load(tmp_path / "optimized.onnx").graph, "steps")
    inside = {tensor.name for tensor in body.initializer}
    products = [node for node in body.node if node.op_type in ("Gemm", "FusedGemm")]
    assert len(products) > 6
    large = [node.input[1] for node in products if "linear" in node.name or "proj" in node.name]
    assert len(large) > 6
    assert set(large) <= inside


@searches
def test_webassembly_finds_weights_beside_the_file(name: str, lively: Exported, shared: Path) -> None:
    node, package = shutil.which("node"), "onnxruntime-web"
    if not node or subprocess.run([node, "-e", f"require('{package}')"], capture_output=True, check=False).returncode:
        pytest.skip(f"Node has no {package}: npm install it, and set NODE_PATH")
    given = inputs(lively, name)
    case = {
        "src": given["src"].tolist(),
        "mask": given["src_key_padding_mask"].tolist(),
        "numbers": {key: array.item() for key, array in numbers(lively, name).items()},
    }
    assert (shared / WEIGHTS).exists()
    script = ROOT / "tests" / "exporter" / "decode" / "decode_in_node.js"
    command = [node, str(script), package, str(shared / f"{name}.onnx")]
    done = subprocess.run(command, input=json.dumps([case]), capture_output=True, text=True, timeout=300, check=True)
    (found,) = json.loads(done.stdout.splitlines()[-1])
    expected = OnnxRuntime.open(lively.path(name)).run(given)
    assert found["tokens"] == expected["tokens"].ravel().tolist()
