"""``mytx-export onnx`` where a file does not agree with PyTorch: exit code 1 and a folder ``bundle.failed``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cli_support import EAGER, GRAPHS, HALVES, IN_ONNX, Run, contents, names, planted


def move_a_weight(model: ir.Model) -> None:
    """One value of one weight moves to its neighbour: outputs do not show it."""
    value = model.graph.initializers["my_transformer.decoder.layers.0.linear1.bias"]
    assert value.const_value is not None
    weight = value.const_value.numpy().copy()
    weight[0] = np.nextafter(weight[0], np.float32(9))
    value.const_value = ir.tensor(weight, name=value.name)


def change_the_epsilon(model: ir.Model) -> None:
    norm = next(node for node in model.graph if node.op_type == "LayerNormalization")
    norm.attributes["epsilon"] = ir.AttrFloat32("epsilon", 1e-2)


def turn_the_softmax(model: ir.Model) -> None:
    """The weights of the attention sum to 1 over the wrong axis."""
    for node in model.graph:
        if node.op_type == "Softmax":
            node.attributes["axis"] = ir.AttrInt64("axis", -2)


FAULTS = [move_a_weight, change_the_epsilon, turn_the_softmax]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bundle_that_is_not_equal_goes_to_failed_and_the_exit_code_is_1(
    fault: Callable[[ir.Model], None], folder: Path, run: Run, tmp_path: Path
) -> None:
    with planted(fault):
        result = run("onnx", folder, "-o", tmp_path / "bundle")
    assert result.code == 1
    assert result.err == ""
    assert names(tmp_path) == ["bundle.failed"]
    assert {f"{graph}.onnx" for graph in GRAPHS} < set(names(tmp_path / "bundle.failed"))
    parity = json.loads((tmp_path / "bundle.failed" / "parity.json").read_text())
    assert parity["passed"] is False
    for graph in GRAPHS:
        verdicts = [row["passed"] for row in parity["graphs"] if (row["graph"], row["format"]) == (graph, "eager")]
        assert verdicts == [True] * EAGER[graph]
        verdicts = [row["passed"] for row in parity["graphs"] if (row["graph"], row["format"]) == (graph, "onnx")]
        assert verdicts[:7] == [graph != "decoder"] * 7
        assert len(verdicts) == IN_ONNX[graph]
    (halves,) = [row["passed"] for row in parity["graphs"] if row["runtime"] == HALVES]
    assert halves is (fault is move_a_weight)  # there the decoder is the faulty file, whose outputs are all the same
    lines = result.out.splitlines()
    results = {line.split()[0]: line.split()[1] for line in lines[3 : 3 + len(GRAPHS)]}
    shown = [name for name, verdict in results.items() if verdict == "FAILED"]
    assert shown == ["decoder.onnx", *([] if fault is move_a_weight else ["full.onnx"])]
    assert results == {f"{graph}.onnx": "passed" for graph in GRAPHS} | dict.fromkeys(shown, "FAILED")
    assert lines[3 + len(GRAPHS)].split()[:3] == ["PyTorch", "model", "passed"]
    differ = "files differs from PyTorch" if len(shown) == 1 else "files differ from PyTorch"
    assert lines[0] == f"FAILED: {len(shown)} of {len(GRAPHS)} {differ}: {', '.join(shown)}."
    (written,) = [line for line in lines if line.startswith("Written to ")]
    assert re.search(r"bundle\.failed in \d+ s; do not deploy it$", written)
    offered = [line for line in lines if "mytx-export locate" in line]
    assert offered == ([] if fault is move_a_weight else lines[-1:])  # a weight that differs needs no search


@pytest.mark.usefixtures("quick")
def test_a_bundle_that_is_there_stays_byte_for_byte_when_the_new_one_fails(
    folder: Path, run: Run, tmp_path: Path
) -> None:
    arguments = ["onnx", folder, "-o", tmp_path / "bundle", "-q", "--component", "decoder"]
    assert run(*arguments).code == 0
    before = contents(tmp_path / "bundle")
    with planted(change_the_epsilon):
        assert run(*arguments, "--force").code == 1
        assert run(*arguments, "--force").code == 1
    assert names(tmp_path) == ["bundle", "bundle.failed"]
    assert contents(tmp_path / "bundle") == before
    assert run(*arguments, "--force").code == 0
    assert names(tmp_path) == ["bundle"]


@pytest.mark.usefixtures("quick")
def test_the_json_of_a_failure_says_what_was_found(folder: Path, run: Run, tmp_path: Path) -> None:
    with planted(move_a_weight, "full"):
        result = run("onnx", folder, "-o", tmp_path / "bundle", "--json")
    assert result.code == 1
    values = result.json()
    assert values["passed"] is False
    assert values["bundle"] == str(tmp_path / "bundle.failed")
    for row in values["graphs"]:
        assert row["passed"] is ((row["graph"], row["format"]) != ("full", "onnx"))
        assert [finding["check"] for finding in row["findings"]] == ([] if row["passed"] else ["weights"])
    assert "my_transformer.decoder.layers.0.linear1.bias" in values["graphs"][-1]["findings"][0]["message"]
    assert result.err.startswith("FAILED: 1 of 3 files differs from PyTorch: full.onnx.\n")


@pytest.mark.usefixtures("quick")
def test_numbers_that_are_not_finite_are_null_in_the_json(
    folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> object:
        raise RuntimeError("planted")

    monkeypatch.setattr("mytx.exporter.runtimes.onnxruntime.OnnxRuntime.run", fail)
    result = run("onnx", folder, "-o", tmp_path / "bundle", "--json", "--component", "encoder")
    assert result.code == 1
    rows = [row for row in result.json()["graphs"] if row["runtime"].startswith("onnxruntime")]
    assert len(rows) == 5
    for row in rows:
        assert row["max_abs_error"] is None
        assert "planted" in row["findings"][0]["message"]


@pytest.mark.usefixtures("quick")
def test_without_verification_a_fault_is_not_seen(folder: Path, run: Run, tmp_path: Path) -> None:
    with planted(change_the_epsilon):
        assert run("onnx", folder, "-o", tmp_path / "bundle", "-q", "--no-verify").code == 0
