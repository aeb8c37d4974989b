"""The commands for other formats, ``--plan``, ``--case`` and ``locate``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from bundles import copy_of_bundle, edit_manifest, relist, tiny_bundle, tiny_model
from cli_support import Run, assert_refused, names
from mytx.exporter import export_bundle, open_bundle
from mytx.exporter.contracts.contract import GRAPHS, SEARCHES, Contract
from mytx.exporter.formats.onnx import export as onnx_format
from mytx.exporter.formats.onnx import files as onnx_files
from mytx.exporter.formats.table import FORMATS


@pytest.fixture(scope="module")
def torch_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with nothing but files whose opening can run code."""
    folder = tmp_path_factory.mktemp("torch") / "bundle"
    result = export_bundle(tiny_model(), folder, formats=("torchscript", "pt2"), components=["encoder"], level="quick")
    assert result.passed
    return folder


@pytest.fixture
def off(tmp_path: Path) -> Path:
    """A bundle in which one norm of the decoder has another epsilon, so little that rounding hides it."""
    bundle = copy_of_bundle(tmp_path)
    model = onnx.load(bundle / "decoder.onnx")
    norm = next(node for node in model.graph.node if "layers.1.norm2/LayerNormalization" in node.name)
    del norm.attribute[:]
    norm.attribute.extend([helper.make_attribute("axis", -1), helper.make_attribute("epsilon", 1.3e-5)])
    onnx.save(model, bundle / "decoder.onnx")
    relist(bundle)
    return bundle


# --- formats ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_formats_go_into_one_bundle(run: Run, saved: Path, tmp_path: Path) -> None:
    result = run("all", saved, "-o", tmp_path / "out", "--plan", "quick", "--json", "--jobs", "2")
    assert result.code == 0
    assert result.json()["passed"] is True
    formats = [known for known in FORMATS.values() if not known.made_of]  # int8 only where it is asked for
    files = {known.file(graph) for known in formats for graph in known.graphs}
    assert len(files) == 7 + 4 + 3
    assert {name for name in names(tmp_path / "out") if name.endswith((".onnx", ".ts.pt", ".pt2"))} == files
    rows = {(row["graph"], row["format"]) for row in result.json()["graphs"]}
    eager = {(graph, "eager") for graph in GRAPHS if graph not in SEARCHES}
    assert rows == eager | {(graph, known.name) for known in formats for graph in known.graphs}


def test_torchscript_says_in_one_line_that_it_is_deprecated(run: Run, saved: Path, tmp_path: Path) -> None:
    options = ("--component", "encoder", "--plan", "quick")
    result = run("torchscript", saved, "-o", tmp_path / "out", *options)
    assert result.code == 0
    assert [line for line in result.err.splitlines() if "deprecated" in line] == result.err.splitlines()
    assert "mytx-export pt2" in result.err
    assert "encoder.ts.pt" in names(tmp_path / "out")
    assert run("torchscript", saved, "-o", tmp_path / "two", "-q", *options).err == ""


def test_files_that_can_run_code_are_opened_only_where_they_are_named(run: Run, torch_bundle: Path) -> None:
    assert_refused(run("verify", torch_bundle), "can run code", "--format")
    result = run("verify", torch_bundle, "--format", "pt2", "--format", "torchscript", "--json")
    assert result.code == 0
    assert {row["format"] for row in result.json()["graphs"]} == {"pt2", "torchscript"}


def test_verify_opens_no_torch_file_of_a_mixed_bundle_by_itself(run: Run, tmp_path: Path) -> None:
    bundle = copy_of_bundle(tmp_path)
    shutil.copy(tiny_bundle() / "config.json", bundle / "encoder.pt2")
    graphs = json.loads((bundle / "manifest.json").read_text())["graphs"]
    graphs["encoder.pt2"] = graphs["encoder.onnx"] | {"file": "encoder.pt2", "format": "pt2"}
    edit_manifest(bundle, graphs=graphs)
    relist(bundle)
    assert run("verify", bundle, "-q").code == 0


@pytest.mark.parametrize("file", ["encoder.pt2", "encoder.ts.pt"])
@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 broken"])
def test_a_foreign_file_is_bad_input(file: str, content: bytes, run: Run, torch_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(torch_bundle, tmp_path / "bundle"))
    (bundle / file).write_bytes(content)
    relist(bundle)
    name = "pt2" if file.endswith("pt2") else "torchscript"
    assert_refused(run("verify", bundle, "--format", name), file)


def test_a_format_that_is_named_twice_is_verified_once(run: Run) -> None:
    once = run("verify", tiny_bundle(), "--format", "onnx", "--json").json()["graphs"]
    twice = run("verify", tiny_bundle(), "--format", "onnx", "--format", "onnx", "--json").json()["graphs"]
    assert len(twice) == len(once)


def test_a_format_that_is_not_there_is_said(run: Run) -> None:
    assert_refused(run("verify", tiny_bundle(), "--format", "pt2"), "no pt2 files", "onnx")


def test_a_bundle_without_onnx_says_what_it_cannot_do(run: Run, torch_bundle: Path) -> None:
    assert_refused(run("run", torch_bundle, "abc"), "no greedy graph in ONNX")
    assert_refused(run("locate", torch_bundle), "no ONNX graphs")
    assert_refused(run("verify", torch_bundle, "--format", "pt2", "--plan", "quick"), "no ONNX files")


# --- plans -----------------------------------------------------------------------------------------------------------


def test_the_plan_can_be_looked_at(run: Run) -> None:
    result = run("verify", tiny_bundle(), "--show-plan")
    assert result.code == 0
    assert "batch 2, source 7, target 5, padding right" in result.out
    assert "with another tgt after position" in result.out
    thorough = run("verify", tiny_bundle(), "--show-plan", "--plan", "thorough", "--json")
    assert len(thorough.json()["graphs"]["full"]) > 60


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"wrong": np.zeros(1)}, ["wrong", "no graph takes"]),
        ({"src": np.zeros((1, 3), np.int32), "src_key_padding_mask": np.zeros((1, 3), bool)}, ["int32", "int64"]),
        ({"src": np.zeros((1, 3), np.int64), "src_key_padding_mask": np.zeros((1, 4), bool)}, ["[1, 4]", "must be 3"]),
        ({"src": np.full((1, 3), 99), "src_key_padding_mask": np.zeros((1, 3), bool)}, ["99", "0 to 11"]),
        ({"src": np.zeros((1, 99), np.int64), "src_key_padding_mask": np.zeros((1, 99), bool)}, ["99", "1 to 40"]),
    ],
    ids=["names", "dtype", "shape", "ids", "length"],
)
def test_a_case_that_fits_no_graph_is_bad_input(
    arrays: dict[str, np.ndarray], words: list[str], run: Run, saved: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "case.npz", **arrays)
    assert_refused(run("verify", tiny_bundle(), "--case", tmp_path / "case.npz"), *words)
    assert_refused(run("onnx", saved, "-o", tmp_path / "out", "--case", tmp_path / "case.npz"), *words)
    assert names(tmp_path) == ["case.npz"]


def test_a_case_that_is_no_file_of_arrays_is_bad_input(run: Run, tmp_path: Path) -> None:
    (tmp_path / "case.npz").write_text("no arrays")
    assert_refused(run("verify", tiny_bundle(), "--case", tmp_path / "case.npz"), "not an .npz file")
    assert_refused(run("verify", tiny_bundle(), "--case", tmp_path / "gone.npz"), "no such file")


# --- locate ----------------------------------------------------------------------------------------------------------


def test_the_place_of_a_fault_is_found_and_can_be_reproduced(run: Run, off: Path, tmp_path: Path) -> None:
    checked = run("verify", off)
    assert checked.code == 1
    assert "mytx-export locate" in checked.out
    result = run("locate", off, "--graph", "decoder", "-o", tmp_path / "small", "--json")
    assert result.code == 1
    (located,) = result.json()["graphs"]
    assert located["introduced"][0]["module"] == "my_transformer.decoder.layers.1.norm2"
    assert names(tmp_path / "small") == ["block.onnx", "expected.npz", "inputs.npz", "reproduce.py"]
    script = subprocess.run([sys.executable, tmp_path / "small" / "reproduce.py"], capture_output=True, text=True)
    assert script.returncode == 1
    assert "largest difference" in script.stdout


def test_a_report_on_a_rebuilt_model_names_the_place(run: Run, off: Path) -> None:
    result = run("verify", off, "--plan", "quick")
    assert result.code == 1
    assert "decoder.onnx, place: my_transformer.decoder.layers.1.norm2" in result.out


def test_nothing_is_found_in_an_honest_bundle(run: Run, tmp_path: Path) -> None:
    bundle = copy_of_bundle(tmp_path)
    result = run("locate", bundle, "--json")
    assert result.code == 0
    assert result.json()["found"] is False
    assert names(tmp_path) == ["bundle"]


def test_the_folder_of_a_reproduction_is_never_written_over(run: Run, off: Path, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    assert_refused(run("locate", off, "--graph", "decoder", "-o", tmp_path / "small"), "exists", "--output")
    assert names(tmp_path / "small") == []


def test_a_reproduction_leaves_a_bundle_beside_it_whole(run: Run, off: Path, tmp_path: Path) -> None:
    failed = off.rename(tmp_path / "w.failed")
    assert run("locate", failed, "--graph", "decoder", "-o", tmp_path / "w").code == 1
    assert names(tmp_path) == ["w", "w.failed"]
    assert run("verify", failed, "-q").code == 1


def test_modules_that_were_not_found_by_name_are_told(run: Run, tmp_path: Path) -> None:
    bundle = copy_of_bundle(tmp_path)
    model = onnx.load(bundle / "encoder.onnx")
    for node in model.graph.node:
        node.name = ""
    onnx.save(model, bundle / "encoder.onnx")
    relist(bundle)
    assert "were not found by the names" in run("locate", bundle, "--graph", "encoder").out


def test_a_manifest_with_half_a_report_is_damaged(run: Run, tmp_path: Path) -> None:
    bundle = copy_of_bundle(tmp_path)
    edit_manifest(bundle, parity={"passed": True, "graphs": [{"x": 1}]})
    assert_refused(run("locate", bundle, "--no-reproduction"), "is damaged")


def test_locate_says_which_graphs_there_are(run: Run) -> None:
    assert_refused(run("locate", tiny_bundle(), "--graph", "step"), "no step graph", "encoder, decoder, full")
    assert_refused(run("locate", tiny_bundle(), "-o", "x"), "one folder", "--graph")


def test_a_bundle_that_failed_holds_the_model_it_is_held_against(
    run: Run, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = onnx_format.finish

    def planted(model: ir.Model, contract: Contract, properties: dict[str, str]) -> None:
        finish(model, contract, properties)
        norm = next(node for node in model.graph if node.op_type == "LayerNormalization")
        norm.attributes.add(ir.AttrFloat32("epsilon", 1e-2))

    monkeypatch.setattr(onnx_files, "finish", planted)
    result = run("onnx", saved, "-o", tmp_path / "out", "--component", "encoder", "--plan", "quick")
    assert result.code == 1
    assert "place: " in result.out
    assert names(tmp_path) == ["out.failed"]
    monkeypatch.setattr(onnx_files, "finish", finish)
    located = run("locate", tmp_path / "out.failed", "--json", "--no-reproduction")
    assert located.code == 1
    assert located.json()["graphs"][0]["introduced"][0]["module"].endswith("norm1")
    assert (tmp_path / "out.failed" / "model").is_dir()
    files = json.loads((tmp_path / "out.failed" / "manifest.json").read_text())["files"]
    assert "model/config.json" in {entry["path"] for entry in files}
    assert open_bundle(tmp_path / "out.failed", allow_failed=True).manifest.parity["passed"] is False
