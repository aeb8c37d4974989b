"""A complete bundle opens; any other is refused with a message that names the problem."""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import onnx
import pytest

from bundles import copy_of_bundle, edit_manifest, relist, tiny_bundle, tiny_model
from mytx.exporter import BundleError, open_bundle, verify_bundle
from mytx.exporter.bundle.integrity import check_files
from mytx.exporter.bundle.manifest import (
    Manifest,
    describe_graph,
    read_manifest,
    sha256,
    weights_sha256,
)
from mytx.models import TranslationModel


def manifest_of(bundle: Path) -> dict:
    return json.loads((bundle / "manifest.json").read_text())


def weights_of(model: TranslationModel) -> dict:
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def test_the_manifest_lists_every_file_with_its_size_and_hash():
    bundle = tiny_bundle()
    listed = {entry["path"]: (entry["bytes"], entry["sha256"]) for entry in manifest_of(bundle)["files"]}
    present = {path.name: (path.stat().st_size, sha256(path)) for path in bundle.iterdir()}
    del present["manifest.json"]
    assert listed == present
    assert {"encoder.onnx", "decoder.onnx", "full.onnx", "config.json", "vocab.json", "reference.npz"} <= set(listed)


def test_the_manifest_says_versions_hashes_contracts_assumptions_and_parity():
    values = manifest_of(tiny_bundle())
    assert values["format"] == 1
    assert {"mytx", "torch", "onnx", "onnxruntime", "python"} <= set(values["tools"])
    assert values["model"]["kind"] == "translation"
    assert values["model"]["weights_sha256"] == weights_sha256(weights_of(tiny_model()))
    assert values["parity"]["passed"] is True
    assert len(values["parity"]["graphs"]) >= 3
    decoder = values["graphs"]["decoder.onnx"]
    assert (decoder["file"], decoder["format"]) == ("decoder.onnx", "onnx")
    assert (decoder["opset"], decoder["ir_version"]) == (18, 8)
    assert decoder["contract"]["ids"] == {"pad": 0, "bos": 1, "eos": 2}
    padding = next(spec for spec in decoder["contract"]["inputs"] if spec["name"] == "memory_key_padding_mask")
    assert "True = padding" in padding["meaning"]
    assert [axis["name"] for axis in padding["axes"]] == ["batch", "source"]


def test_the_manifest_goes_through_json_and_back():
    manifest = read_manifest(tiny_bundle())
    assert Manifest.from_dict(json.loads(json.dumps(manifest.to_dict()))) == manifest


def test_the_graphs_of_a_format_are_found_by_their_own_name():
    manifest = read_manifest(tiny_bundle())
    assert list(manifest.of_format("onnx")) == ["encoder", "decoder", "full"]
    for name, entry in manifest.of_format("onnx").items():
        assert entry is manifest.graphs[f"{name}.onnx"]
        assert (entry.contract.graph, entry.format) == (name, "onnx")
    assert manifest.of_format("pt2") == {}
    other = replace(manifest.graphs["full.onnx"], file="full.pt2", format="pt2", opset=None, ir_version=None)
    both = replace(manifest, graphs={**manifest.graphs, "full.pt2": other})
    assert both.of_format("pt2") == {"full": other}
    assert both.of_format("onnx") == manifest.of_format("onnx")
    assert Manifest.from_dict(json.loads(json.dumps(both.to_dict()))) == both


def test_files_of_other_formats_have_no_opset_and_are_not_read_as_onnx(tmp_path):
    (tmp_path / "full.pt2").write_bytes(b"not ONNX")
    contract = read_manifest(tiny_bundle()).graphs["full.onnx"].contract
    entry = describe_graph(tmp_path / "full.pt2", "pt2", contract)
    assert (entry.file, entry.format, entry.opset, entry.ir_version) == ("full.pt2", "pt2", None, None)


def test_other_weights_give_another_hash():
    model = tiny_model()
    before = weights_sha256(weights_of(model))
    model.state_dict()["classification.bias"][0] += 1
    assert weights_sha256(weights_of(model)) != before


def test_stored_cases_stay_small():
    assert (tiny_bundle() / "reference.npz").stat().st_size <= 5_000_000


def test_a_whole_bundle_opens(tmp_path):
    bundle = copy_of_bundle(tmp_path)
    assert set(open_bundle(bundle).manifest.graphs) == {"encoder.onnx", "decoder.onnx", "full.onnx"}


def change_a_byte(bundle: Path) -> None:
    path = bundle / "decoder.onnx"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(bundle: Path) -> None:
    path = bundle / "encoder.onnx"
    path.write_bytes(path.read_bytes()[:-1])


def link_symbolically(bundle: Path) -> None:
    (bundle / "encoder.onnx").rename(bundle.parent / "elsewhere.onnx")
    (bundle / "encoder.onnx").symlink_to(bundle.parent / "elsewhere.onnx")


def link_a_folder(bundle: Path) -> None:
    (bundle.parent / "other").mkdir()
    (bundle / "more").symlink_to(bundle.parent / "other")


def rename_in_manifest(path: str):
    def damage(bundle: Path) -> None:
        files = manifest_of(bundle)["files"]
        files[0]["path"] = path
        edit_manifest(bundle, files=files)

    return damage


def graph_file_in_manifest(path: str):
    def damage(bundle: Path) -> None:
        graphs = manifest_of(bundle)["graphs"]
        graphs["encoder.onnx"]["file"] = path
        edit_manifest(bundle, graphs=graphs)

    return damage


def weights_outside(bundle: Path) -> None:
    """A graph whose weights are in a file that nobody listed; everything else about it is right."""
    (bundle.parent / "secret").write_bytes(bytes(4 * 16))
    model = onnx.load(bundle / "encoder.onnx")
    tensor = next(tensor for tensor in model.graph.initializer if list(tensor.dims) == [16])
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    (bundle / "encoder.onnx").write_bytes(model.SerializeToString())
    relist(bundle)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change_a_byte, "decoder.onnx has changed"),
        (truncate, "encoder.onnx has .* bytes, the manifest says"),
        (lambda bundle: (bundle / "full.onnx").unlink(), "full.onnx is missing"),
        (lambda bundle: (bundle / "notes.txt").write_text("hi"), "notes.txt is not listed"),
        (lambda bundle: os.mkfifo(bundle / "pipe"), "pipe is not a regular file"),
        (link_symbolically, "encoder.onnx is a symbolic link"),
        (link_a_folder, "more is a symbolic link"),
        (rename_in_manifest("../config.json"), "not a path inside the bundle"),
        (rename_in_manifest("/etc/passwd"), "not a path inside the bundle"),
        (rename_in_manifest("a/../../b"), "not a path inside the bundle"),
        (rename_in_manifest("..\\config.json"), "not a path inside the bundle"),
        (graph_file_in_manifest("../bundle/encoder.onnx"), "not a path inside the bundle"),
        (graph_file_in_manifest("other.onnx"), "other.onnx is not listed"),
        (weights_outside, "weights in '../secret'"),
        (lambda bundle: edit_manifest(bundle, format=99), "format 99, this mytx knows up to 1"),
        (lambda bundle: edit_manifest(bundle, files=None), "damaged"),
        (lambda bundle: edit_manifest(bundle, graphs=[]), "damaged"),
        (lambda bundle: (bundle / "manifest.json").write_text("{"), "damaged"),
        (lambda bundle: (bundle / "manifest.json").unlink(), "no manifest.json"),
    ],
)
def test_a_damaged_bundle_is_refused(damage, message, tmp_path):
    bundle = copy_of_bundle(tmp_path)
    damage(bundle)
    with pytest.raises(BundleError, match=message) as caught:
        open_bundle(bundle)
    assert caught.value.hint
    assert "\n" not in caught.value.message


# Where in the manifest of a bundle, and what instead.
WRONG_TYPES: list[tuple[str, Any]] = [
    ("format", "<script>"),
    ("tools", {"torch": 2}),
    ("model/kind", 3),
    ("model/parameters", None),
    ("assumed", [1]),
    ("files/0/path", 5),
    ("files/0/bytes", "many"),
    ("files/0/bytes", True),
    ("files/0/sha256", None),
    ("graphs/encoder.onnx/file", True),
    ("graphs/encoder.onnx/file", []),
    ("graphs/encoder.onnx/format", 7),
    ("graphs/encoder.onnx/format", "tflite"),
    ("graphs/encoder.onnx/opset", "18"),
    ("graphs/encoder.onnx/contract/graph", 1),
    ("graphs/encoder.onnx/contract/inputs/0/name", {"a": {}}),
    ("graphs/encoder.onnx/contract/inputs/0/role", {}),
    ("graphs/encoder.onnx/contract/inputs/0/axes/0/name", True),
    ("graphs/encoder.onnx/contract/inputs/0/axes/0/times", ".."),
    ("graphs/encoder.onnx/contract/inputs/0/axes/0/plus", [[]]),
    ("graphs/encoder.onnx/contract/inputs/0/axes/0/traced", {}),
    ("graphs/encoder.onnx/contract/inputs/0/axes/0/maximum", math.inf),
    ("graphs/encoder.onnx/contract/ids", {"pad": "0"}),
    ("parity/passed", "yes"),
    ("parity/passed", 0),
    ("parity/graphs/0/worst_ratio", math.nan),
]


@pytest.mark.parametrize(("place", "value"), WRONG_TYPES)
def test_a_value_of_another_type_is_refused(place: str, value: Any, tmp_path: Path):
    bundle = copy_of_bundle(tmp_path)
    values = manifest_of(bundle)
    *above, last = (int(part) if part.isdigit() else part for part in place.split("/"))
    inner = reduce(lambda found, key: found[key], above, values)
    inner[last] = value
    (bundle / "manifest.json").write_text(json.dumps(values))
    with pytest.raises(BundleError, match=r"manifest\.json is damaged"):
        open_bundle(bundle, allow_failed=True)


def test_a_file_that_no_graph_has_is_refused(tmp_path: Path):
    bundle = copy_of_bundle(tmp_path)
    graphs = manifest_of(bundle)["graphs"]
    del graphs["full.onnx"]
    edit_manifest(bundle, graphs=graphs)
    with pytest.raises(BundleError, match=r"full\.onnx is of no graph"):
        open_bundle(bundle)


def test_a_verdict_without_what_failed_does_not_pass(tmp_path: Path):
    bundle = copy_of_bundle(tmp_path)
    edit_manifest(bundle, parity={"passed": False, "graphs": []})
    with pytest.raises(BundleError, match="says that parity failed, and not where"):
        verify_bundle(bundle)


@pytest.mark.parametrize("value", [None, "a", [], {}, -1, 2**31, True, 1.5])
@pytest.mark.parametrize("name", ["src_vocab_size", "max_length", "eos_id"])
def test_a_configuration_with_other_numbers_is_refused(name: str, value: Any, tmp_path: Path):
    bundle = open_bundle(copy_of_bundle(tmp_path))
    path = bundle.folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(BundleError, match=f"{name} is"):
        bundle.generate([[3, 4]])


def test_all_that_is_wrong_is_counted(tmp_path):
    bundle = copy_of_bundle(tmp_path)
    (bundle / "full.onnx").unlink()
    (bundle / "notes.txt").write_text("hi")
    with pytest.raises(BundleError, match="and 1 more"):
        check_files(bundle, read_manifest(bundle))


def test_a_bundle_whose_parity_failed_opens_only_when_asked(tmp_path):
    bundle = copy_of_bundle(tmp_path)
    edit_manifest(bundle, parity={"passed": False, "graphs": []})
    with pytest.raises(BundleError, match="parity"):
        open_bundle(bundle)
    assert open_bundle(bundle, allow_failed=True).manifest.parity["passed"] is False


def test_a_bundle_can_be_moved_and_renamed(tmp_path):
    bundle = copy_of_bundle(tmp_path).rename(tmp_path / "another name")
    assert open_bundle(bundle).greedy([4, 5], max_length=3) == open_bundle(tiny_bundle()).greedy([4, 5], max_length=3)


def test_a_bundle_of_hard_links_opens(tmp_path: Path):
    """As ``cp -l``, deduplicated storage and package caches make them: the hashes decide."""
    links = tmp_path / "links"
    shutil.copytree(tiny_bundle(), links, copy_function=os.link)
    assert all(path.stat().st_nlink > 1 for path in links.iterdir() if path.is_file())
    assert open_bundle(links).greedy([4, 5], max_length=3) == open_bundle(tiny_bundle()).greedy([4, 5], max_length=3)
