"""Faults in ``weights.bin`` and in references to it are found by the manifest, by the weight check or on loading."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch

from bundles import LETTERS, SOUNDS, arrays_of, relist, shared_bundle, tiny_model
from cli_support import Run, assert_refused
from mytx.exporter import BundleError, open_bundle
from mytx.exporter.formats.onnx.shared_weights import WEIGHTS, SharedWeights, write_weights
from mytx.exporter.formats.onnx.storage import read_model, read_values
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.parity.weights import find_weights
from mytx.models import TranslationModel

WEIGHT = "my_transformer.encoder.layers.0.self_attn.q_proj.weight"


def edit_place(path: Path, name: str, **changes: object) -> None:
    """Let a weight of a file be elsewhere."""
    model = onnx.load(path, load_external_data=False)
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == name]
    for item in tensor.external_data:
        if item.key in changes:
            item.value = str(changes[item.key])
    onnx.save(model, path)


def next_place(folder: Path, name: str) -> int:
    """Where the weight behind this one begins."""
    index = SharedWeights(folder / WEIGHTS).index
    return min(entry["offset"] for entry in index.values() if entry["offset"] > index[name]["offset"])


def offset_off_by_one_tensor(folder: Path, graph: str) -> None:
    edit_place(folder / f"{graph}.onnx", WEIGHT, offset=next_place(folder, WEIGHT))


def length_cut(folder: Path, graph: str) -> None:
    edit_place(folder / f"{graph}.onnx", WEIGHT, length=1020)


def behind_the_end(folder: Path, graph: str) -> None:
    edit_place(folder / f"{graph}.onnx", WEIGHT, offset=(folder / WEIGHTS).stat().st_size - 64)


def outside(folder: Path, graph: str) -> None:
    shutil.copy(folder / WEIGHTS, folder.parent / WEIGHTS)
    edit_place(folder / f"{graph}.onnx", WEIGHT, location=f"../{WEIGHTS}")


def absolute(folder: Path, graph: str) -> None:
    edit_place(folder / f"{graph}.onnx", WEIGHT, location=str(folder / WEIGHTS))


def flipped_bit(folder: Path, graph: str) -> None:
    path = folder / WEIGHTS
    data = bytearray(path.read_bytes())
    data[next_place(folder, WEIGHT) + 100] ^= 1
    path.write_bytes(data)


def truncated(folder: Path, graph: str) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[: SharedWeights(path).index[WEIGHT]["offset"] + 100])


def of_another_bundle(folder: Path, graph: str) -> None:
    """The same sizes, other weights: a file of one, the weights of the other."""
    torch.manual_seed(1)
    other = TranslationModel(len(LETTERS), len(SOUNDS), 16, 2, 1, 2, 24, 0.1, max_length=40)
    write_weights(folder, {"full": arrays_of(other)})


def gone(folder: Path, graph: str) -> None:
    (folder / WEIGHTS).unlink()


def linked(folder: Path, graph: str) -> None:
    (folder / WEIGHTS).rename(folder.parent / WEIGHTS)
    (folder / WEIGHTS).symlink_to(folder.parent / WEIGHTS)


IN_A_GRAPH = [length_cut, behind_the_end, outside, absolute]
FAULTS = [offset_off_by_one_tensor, *IN_A_GRAPH, flipped_bit, truncated, of_another_bundle, gone, linked]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("command", ["verify", "run", "locate"])
def test_a_damaged_bundle_is_refused_by_its_manifest(
    fault: Callable[[Path, str], None], command: str, run: Run, bundle: Path
) -> None:
    fault(bundle, "encoder")
    result = run(command, bundle, *(["abc"] if command == "run" else []))
    assert_refused(result, "hint: ")
    assert "manifest" in result.err or "link" in result.err or "missing" in result.err


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("graph", ["encoder", "full"])
def test_what_a_new_manifest_hides_the_weights_show(
    fault: Callable[[Path, str], None], graph: str, run: Run, bundle: Path
) -> None:
    """Either the rebuilt model is not the one that the bundle was made from, or a file is not the model."""
    fault(bundle, graph)
    relist(bundle)
    result = run("verify", bundle, "--plan", "quick", "--json")
    assert result.code in (1, 2), result
    if result.code == 1:
        rows = json.loads(result.out)["graphs"]
        failed = {row["graph"] for row in rows if not row["passed"]}
        assert graph in failed
        assert "weights" in {f["check"] for row in rows if row["graph"] == graph for f in row["findings"]}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_of_weights_finds_each_fault(fault: Callable[[Path, str], None], bundle: Path) -> None:
    """As on an export: the model is at hand, and no manifest is yet."""
    fault(bundle, "full")
    weights = {name: tensor.numpy() for name, tensor in graphs_of(tiny_model())["full"].weights().items()}
    assert find_weights("onnx", shared_bundle() / "full.onnx", weights) == []
    found = find_weights("onnx", bundle / "full.onnx", weights)
    assert {finding.check for finding in found} == {"weights"}


@pytest.mark.parametrize("fault", IN_A_GRAPH)
def test_values_are_read_from_the_folder_alone(fault: Callable[[Path, str], None], bundle: Path) -> None:
    fault(bundle, "encoder")
    path = bundle / "encoder.onnx"
    with pytest.raises(Exception, match=r".+"):
        [read_values(tensor, path) for tensor in read_model(path)[1]]


@pytest.mark.parametrize("fault", [gone, truncated])
def test_what_onnxruntime_cannot_open_is_said_where_the_files_are_not_checked(
    fault: Callable[[Path, str], None], bundle: Path
) -> None:
    opened = open_bundle(bundle, check=False)
    fault(bundle, "encoder")
    with pytest.raises(BundleError, match=r"encoder\.onnx"):
        opened.graph("encoder")


def _index(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()


DAMAGED = [
    b"",
    b"\xff" * 8,
    _index("nope!"),
    _index("[1]"),
    _index('{"a": "b"}'),
    _index('{"a": {"offset": 0, "bytes": 4}}'),
    _index('{"a": {"offset": -8, "bytes": 4, "sha256": ""}}'),
    _index('{"a": {"offset": 64, "bytes": 4096, "sha256": ""}}'),
]


@pytest.mark.parametrize("data", DAMAGED)
def test_a_damaged_index_is_an_error(data: bytes, tmp_path: Path) -> None:
    (tmp_path / WEIGHTS).write_bytes(data)
    with pytest.raises(BundleError, match=r"weights\.bin is damaged"):
        SharedWeights(tmp_path / WEIGHTS)
