"""``--precision`` and ``quantize``: what they write, what they say, and what they refuse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from bundles import copy_of_bundle, relist, tiny_bundle, tiny_model
from cli_support import Result, assert_refused, contents, names
from kept import kept
from mytx.exporter import ExportError, export_bundle, open_bundle
from mytx.exporter.formats.quantisation import SCALE
from mytx.models import save_model
from planting import change

Run = Callable[..., Result]
QUICK = ("--plan", "quick")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "saved"
    save_model(tiny_model(), folder)
    shutil.copy(tiny_bundle() / "vocab.json", folder)
    return folder


@pytest.fixture
def both(run: Run, saved: Path, tmp_path: Path) -> Path:
    """A copy of a bundle with the greedy search in both precisions, made once."""

    def make(folder: Path) -> None:
        precisions = ("--precision", "fp32", "--precision", "int8", "--precision", "int8")
        result = run("onnx", saved, *precisions, "--component", "greedy", *QUICK, "-o", folder)
        assert result.code == 0, result

    return copy_of_bundle(tmp_path, kept("both-precisions", make))


def test_both_precisions_in_one_bundle(both: Path, run: Run) -> None:
    assert {"greedy.onnx", "greedy.int8.onnx"} <= set(names(both))
    manifest = json.loads((both / "manifest.json").read_text())
    assert {name: entry["format"] for name, entry in manifest["graphs"].items()} == {
        "greedy.onnx": "onnx",
        "greedy.int8.onnx": "int8",
    }
    assert manifest["graphs"]["greedy.int8.onnx"]["opset"] == 18
    (task,) = manifest["parity"]["task"]
    assert (task["file"], task["precision"], task["sentences"], task["target"]) == (
        "greedy.int8.onnx",
        "int8",
        100,
        None,
    )
    page = (both / "parity.html").read_text()
    assert "greedy.int8.onnx" in page
    assert "Files in int8" in page
    assert "greedy.int8.onnx" in run("inspect", both).out
    told = run("verify", both, "--json").json()
    assert {(row["graph"], row["format"]) for row in told["graphs"]} == {("greedy", "onnx"), ("greedy", "int8")}
    assert {row["runtime"] for row in told["graphs"] if row["format"] == "int8"} >= {
        "onnxruntime",
        "onnx.reference, float64",
    }


def test_int8_alone_leaves_nothing_of_float32(run: Run, saved: Path, tmp_path: Path) -> None:
    bundle, junit = tmp_path / "bundle", tmp_path / "parity.xml"
    arguments = ("--precision", "int8", "--weights", "shared", "--component", "greedy", "--junit", junit)
    result = run("onnx", saved, *arguments, *QUICK, "-o", bundle)
    assert result.code == 0
    assert "greedy.int8.onnx" in result.out
    assert "sentences of random ids get the same tokens" in result.out
    files = [name for name in names(bundle) if name.endswith((".onnx", ".bin"))]
    assert files == ["greedy.int8.onnx", "weights.int8.bin"]
    suites = {suite.get("name") for suite in ElementTree.parse(junit).getroot()}
    assert {"parity.greedy.int8.onnx", "task.greedy.int8.onnx"} <= suites
    assert open_bundle(bundle).format == "int8"
    assert run("run", bundle, "abc").code == 0
    assert_refused(run("run", bundle, "--precision", "fp32", "abc"), "no ONNX files in fp32", "choose from int8")
    assert_refused(run("verify", bundle, "--plan", "quick"), "no ONNX files in fp32 to read the weights from")
    assert_refused(run("quantize", bundle), "has files in int8 already")
    told = run("bench", bundle, "--steps", "3", "--rounds", "1", "--json").json()
    assert [row["name"] for row in told["rows"]] == ["greedy.int8.onnx"]
    assert any("no files in fp32" in note for note in told["notes"])


def test_the_precision_of_a_run_and_of_a_bench(both: Path, run: Run) -> None:
    for precision, file in (("int8", "greedy.int8.onnx"), ("fp32", "greedy.onnx"), (None, "greedy.onnx")):
        options = ("--precision", precision) if precision else ()
        told = run("bench", both, *options, "--steps", "3", "--rounds", "1", "--json").json()
        assert file in [row["name"] for row in told["rows"]]
        assert run("run", both, *options, "abc").code == 0


def test_an_interrupted_run_is_not_continued_in_another_precision(both: Path, run: Run, tmp_path: Path) -> None:
    lines, output = tmp_path / "lines.txt", tmp_path / "out.txt"
    lines.write_text("abc\n" * 600 + "a" * 50 + "\n")
    assert run("run", both, "--input", lines, "--output", output).code == 2  # it is too long
    assert (tmp_path / "out.txt.part").exists()
    result = run("run", both, "--precision", "int8", "--input", lines, "--output", output)
    assert_refused(result, "precision")


def test_jobs_write_the_same_bytes(run: Run, saved: Path, tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []
    for jobs in ("1", "2"):
        arguments = ("--precision", "int8", "--component", "encoder", "--component", "decoder", "--no-verify")
        assert run("onnx", saved, *arguments, "--jobs", jobs, "-o", tmp_path / jobs).code == 0
        found.append({name: data for name, data in contents(tmp_path / jobs).items() if name.endswith(".onnx")})
    assert set(found[0]) == {"encoder.int8.onnx", "decoder.int8.onnx"}
    assert found[0] == found[1]


def test_a_scale_that_was_changed_is_found_without_the_model(both: Path, run: Run) -> None:
    model = onnx.load(both / "greedy.int8.onnx")
    change(model.graph, f"linear1.weight{SCALE}", lambda scales: scales * np.float32(1.02))
    onnx.save(model, both / "greedy.int8.onnx")
    relist(both)
    result = run("verify", both)
    assert result.code == 1
    assert "greedy.int8.onnx" in result.out
    assert "1 of 2 files differs from PyTorch: greedy.int8.onnx" in result.out
    assert run("verify", both, "--format", "onnx").code == 0


def test_weights_that_stand_in_a_file_that_is_not_listed(both: Path, run: Run) -> None:
    model = onnx.load(both / "greedy.int8.onnx")
    tensor = next(item for item in model.graph.initializer if item.data_type == onnx.TensorProto.INT8)
    (both / "other.bin").write_bytes(numpy_helper.to_array(tensor).tobytes())
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="other.bin")
    (both / "greedy.int8.onnx").write_bytes(model.SerializeToString())
    (both / "other.bin").unlink()
    relist(both)
    assert_refused(run("verify", both), "weights in 'other.bin', which is not listed")


def test_what_int8_cannot_hold_is_refused(tmp_path: Path) -> None:
    model = tiny_model()
    with torch.no_grad():
        model.classification.weight[0, 0] = float("nan")
    with pytest.raises(ExportError, match=r"classification\.weight has values that are NaN or infinite"):
        export_bundle(model, tmp_path / "bundle", formats=["int8"], components=["decoder"])
    assert names(tmp_path) == []


def test_int4_is_added_to_a_bundle_and_says_which_runtime_it_needs(both: Path, run: Run, tmp_path: Path) -> None:
    shutil.copytree(both, tmp_path / "three")
    result = run("quantize", tmp_path / "three", "--precision", "int4", *QUICK)
    assert result.code == 0, result
    assert {"greedy.onnx", "greedy.int8.onnx", "greedy.int4.onnx"} <= set(names(tmp_path / "three"))
    graphs = json.loads((tmp_path / "three" / "manifest.json").read_text())["graphs"]
    assert {entry["format"]: entry["runtime"] for entry in graphs.values()} == {
        "onnx": "",
        "int8": "",
        "int4": "onnxruntime",
    }
    assert run("inspect", tmp_path / "three").out.count("only onnxruntime can run this file") == 1
    assert open_bundle(tmp_path / "three").format == "onnx"
    bundle = open_bundle(tmp_path / "three", precision="int4")
    assert "MatMulNBits" in (tmp_path / "three" / bundle.entry("greedy").file).read_bytes().decode("latin1")
    assert run("run", tmp_path / "three", "--precision", "int4", "abc").code == 0
    verified = run("verify", tmp_path / "three", "--format", "int4", "--json").json()
    assert {row["runtime"] for row in verified["graphs"]} == {
        "onnxruntime",
        "onnxruntime, 1 thread",
        "onnxruntime, level extended",
        "onnxruntime, level basic",
        "onnx.reference, float64",
    }
    assert_refused(run("quantize", tmp_path / "three", "--precision", "int4"), "has files in int4 already")
    model = onnx.load(tmp_path / "three" / "greedy.int4.onnx")
    change(model.graph, f"linear1.weight{SCALE}", lambda scales: scales * np.float32(1.02))
    onnx.save(model, tmp_path / "three" / "greedy.int4.onnx")
    relist(tmp_path / "three")
    result = run("verify", tmp_path / "three")
    assert result.code == 1
    assert "1 of 3 files differs from PyTorch: greedy.int4.onnx" in result.out


@pytest.mark.usefixtures("inside_example")
def test_a_model_of_ones_own_is_refused(run: Run, tmp_path: Path) -> None:
    arguments = ("--model", "translation:build", "--contract", "contract.py", "--precision", "int8")
    assert_refused(run("onnx", "model.pt", *arguments, "-o", tmp_path / "bundle"), "a model of your own", "float32")
    assert names(tmp_path) == []


# --- the task --------------------------------------------------------------------------------------------------------


def test_below_the_target_the_command_fails_and_an_old_bundle_stays(both: Path, run: Run, tmp_path: Path) -> None:
    """With integers of which the largest are spoiled, sentences get other tokens."""
    task = tmp_path / "task.txt"
    task.write_text("abc\tB K\nba\tD\ncafe\tB B\n")
    shutil.copytree(both, tmp_path / "old")
    for name in ("greedy.int8.onnx",):
        (tmp_path / "old" / name).unlink()
    manifest = json.loads((tmp_path / "old" / "manifest.json").read_text())
    manifest["graphs"] = {"greedy.onnx": manifest["graphs"]["greedy.onnx"]}
    (tmp_path / "old" / "manifest.json").write_text(json.dumps(manifest))
    relist(tmp_path / "old")
    before = contents(tmp_path / "old")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mytx.exporter.task.gate.decode", _spoiled(patch))
        arguments = ("--task-data", task, "--target-agreement", "0.5", *QUICK, "--junit", tmp_path / "parity.xml")
        result = run("quantize", tmp_path / "old", *arguments)
    assert result.code == 1
    assert "greedy.int8.onnx misses the target on task.txt" in result.out
    assert "0 of 3 sentences of task.txt get the same tokens" in result.out
    assert "word error rate" in result.out
    assert contents(tmp_path / "old") == before
    assert (tmp_path / "old.failed" / "greedy.int8.onnx").exists()
    failures = list(ElementTree.parse(tmp_path / "parity.xml").getroot().iter("failure"))
    assert [failure.get("type") for failure in failures] == ["task"]
    result = run("verify", tmp_path / "old.failed")
    assert result.code == 1  # the files agree, but the task does not
    assert "greedy.int8.onnx misses the target on task.txt" in result.out
    assert "when it was made" not in result.out
    result = run("quantize", tmp_path / "old", "--task-data", task, "--target-agreement", "0", *QUICK, "--json")
    assert result.code == 0
    told = result.json()
    assert told["task"][0]["target"] == 0
    assert [measure["name"] for measure in told["task"][0]["measures"]] == ["word error rate", "chrF", "BLEU"]
    assert not (tmp_path / "old.failed").exists()
    assert run("verify", tmp_path / "old").code == 0


def _spoiled(patch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``decode`` that gives every other time one token more."""
    from mytx.exporter.task import gate

    decode, calls = gate.decode, []

    def spoiled(*arguments: Any) -> Any:
        calls.append(1)
        return [((*ids, 3) if len(calls) % 2 == 0 else ids, score) for ids, score in decode(*arguments)]

    return spoiled


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--target-agreement", "0.5"), "all files are in fp32"),
        (("--precision", "int8", "--component", "encoder", "--target-agreement", "0.5"), "no graph decodes here"),
        (("--precision", "int8", "--task-data", "none.txt"), "none.txt cannot be read"),
        (("--precision", "int8", "--target-agreement", "1.5"), "1.5"),
        (("--precision", "int8", "--no-verify", "--target-agreement", "0.5"), "--no-verify compares nothing"),
        (("--precision", "int2"), "int2"),
    ],
)
def test_options_that_do_not_fit(arguments: tuple[str, ...], words: str, run: Run, saved: Path, tmp_path: Path) -> None:
    assert_refused(run("onnx", saved, *arguments, "-o", tmp_path / "bundle"), words)
    assert names(tmp_path) == []
