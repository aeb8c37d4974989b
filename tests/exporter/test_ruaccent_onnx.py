"""A published checkpoint that nobody here trained, all the way: export, proof, and decoding in onnxruntime."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import EAGER, GRAPHS, IN_ONNX

from mytx.exporter import export_bundle
from mytx.exporter.runtimes import OnnxRuntime
from mytx.models import load_checkpoint

pytestmark = pytest.mark.slow
GOLDENS = json.loads((Path(__file__).parents[1] / "data" / "ruaccent.json").read_text(encoding="utf-8"))
START, END, LENGTH = 1, 2, 256


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = importlib.util.find_spec("ruaccent")
    assert spec is not None
    assert spec.origin is not None
    model = load_checkpoint(Path(spec.origin).parent / "model" / "acc_model.pt", nhead=8)
    result = export_bundle(model, tmp_path_factory.mktemp("ruaccent") / "bundle")
    assert result.report is not None
    assert {report.findings for report in result.report.graphs} == {()}
    assert len(result.report.graphs) == sum(EAGER.values()) + sum(IN_ONNX.values())
    assert result.passed
    return result.bundle


@pytest.fixture(scope="module")
def encoder(bundle: Path) -> OnnxRuntime:
    return OnnxRuntime.open(bundle / "encoder.onnx")


@pytest.fixture(scope="module")
def decoder(bundle: Path) -> OnnxRuntime:
    return OnnxRuntime.open(bundle / "decoder.onnx")


def test_all_three_graphs_pass(bundle: Path) -> None:
    parity = json.loads((bundle / "parity.json").read_text())
    assert parity["passed"] is True
    for name in GRAPHS:
        rows = [row for row in parity["graphs"] if row["graph"] == name]
        assert [row["format"] for row in rows] == ["eager"] * EAGER[name] + ["onnx"] * IN_ONNX[name]
        for row in rows:
            assert row["cases"] >= (24 if row["runtime"].startswith("onnxruntime") else 3)
            assert 0 < row["worst_ratio"] < row["allowed"]


@pytest.mark.parametrize("golden", GOLDENS, ids=map(str, range(len(GOLDENS))))
def test_greedy_decoding_in_onnxruntime_gives_the_golden_ids(
    golden: dict[str, Any], encoder: OnnxRuntime, decoder: OnnxRuntime
) -> None:
    """As the package itself decodes: the source padded to all 256 positions, without a mask."""
    src = np.zeros((1, LENGTH), np.int64)
    src[0, : len(golden["source_ids"])] = golden["source_ids"]
    padding = np.zeros((1, LENGTH), bool)
    memory = encoder.run({"src": src, "src_key_padding_mask": padding})["memory"]
    ids = [START]
    while ids[-1] != END and len(ids) < LENGTH:
        inputs = {
            "tgt": np.array([ids]),
            "memory": memory,
            "tgt_key_padding_mask": np.zeros((1, len(ids)), bool),
            "memory_key_padding_mask": padding,
        }
        ids.append(int(decoder.run(inputs)["logits"][0, -1].argmax()))
    assert ids[1:] == golden["target_ids"]


def test_the_full_graph_gives_the_golden_ids_in_one_batch_with_the_padding_of_the_targets_masked(bundle: Path) -> None:
    full = OnnxRuntime.open(bundle / "full.onnx")
    count, longest = len(GOLDENS), max(len(golden["target_ids"]) for golden in GOLDENS)
    src, tgt = np.zeros((count, LENGTH), np.int64), np.zeros((count, longest), np.int64)
    hidden = np.ones((count, longest), bool)
    for row, golden in enumerate(GOLDENS):
        target = [START, *golden["target_ids"][:-1]]
        src[row, : len(golden["source_ids"])] = golden["source_ids"]
        tgt[row, : len(target)], hidden[row, : len(target)] = target, False
    inputs = {
        "src": src,
        "tgt": tgt,
        "src_key_padding_mask": np.zeros((count, LENGTH), bool),
        "tgt_key_padding_mask": hidden,
    }
    best = full.run(inputs)["logits"].argmax(-1)
    found = [row[: len(golden["target_ids"])].tolist() for row, golden in zip(best, GOLDENS, strict=True)]
    assert found == [golden["target_ids"] for golden in GOLDENS]
