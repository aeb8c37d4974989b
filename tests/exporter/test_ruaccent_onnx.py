"""A published checkpoint: export, verification and decoding in onnxruntime."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.ct2_model import open_ct2, save_ct2, translate_ct2
from cli_support import EAGER, GRAPHS, IN_ONNX
from mytx.exporter import export_bundle, open_bundle
from mytx.exporter.contracts.contract import GRAPHS as ALL
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime
from mytx.models import load_checkpoint
from repository import DATA

pytestmark = pytest.mark.slow
GOLDENS = json.loads((DATA / "ruaccent.json").read_text(encoding="utf-8"))
START, END, LENGTH = 1, 2, 256


def model() -> Any:
    spec = importlib.util.find_spec("ruaccent")
    assert spec is not None
    assert spec.origin is not None
    return load_checkpoint(Path(spec.origin).parent / "model" / "acc_model.pt", nhead=8).eval()


def padded() -> NDArray[np.int64]:
    """The sources as the package itself has them: padded to all 256 positions, without a mask."""
    src = np.zeros((len(GOLDENS), LENGTH), np.int64)
    for row, golden in enumerate(GOLDENS):
        src[row, : len(golden["source_ids"])] = golden["source_ids"]
    return src


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = export_bundle(model(), tmp_path_factory.mktemp("ruaccent") / "bundle")
    assert result.report is not None
    assert {report.findings for report in result.report.graphs} == {()}
    assert {report.graph for report in result.report.graphs} == set(ALL)
    assert result.passed
    return result.bundle


@pytest.fixture(scope="module")
def encoder(bundle: Path) -> OnnxRuntime:
    return OnnxRuntime.open(bundle / "encoder.onnx")


@pytest.fixture(scope="module")
def decoder(bundle: Path) -> OnnxRuntime:
    return OnnxRuntime.open(bundle / "decoder.onnx")


def test_the_plain_graphs_pass_in_every_way(bundle: Path) -> None:
    parity = json.loads((bundle / "parity.json").read_text())
    assert parity["passed"] is True
    for name in GRAPHS:
        rows = [row for row in parity["graphs"] if row["graph"] == name]
        steps = int(name == "full")  # by cached steps, too
        assert [row["format"] for row in rows] == ["eager"] * (EAGER[name] + steps) + ["onnx"] * (IN_ONNX[name] + steps)
        for row in rows:
            assert row["cases"] >= {"onnxruntime": 24}.get(row["runtime"], 3)
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
    src, tgt = padded(), np.zeros((count, longest), np.int64)
    hidden = np.ones((count, longest), bool)
    for row, golden in enumerate(GOLDENS):
        target = [START, *golden["target_ids"][:-1]]
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


@pytest.mark.parametrize("num_beams", [1, 4])
def test_the_whole_decode_in_one_file_is_ctranslate2s_and_greedy_gives_the_golden_ids(
    num_beams: int, bundle: Path, tmp_path: Path
) -> None:
    """All sentences in one batch. Long ones are long here: up to 100 tokens, so scores are sums of many."""
    sources = padded().tolist()
    wishes: dict[str, Any] = {"num_beams": num_beams, "max_length": LENGTH - 1}
    found = open_bundle(bundle).generate(sources, **wishes)
    theirs = translate_ct2(open_ct2(save_ct2(model(), tmp_path / "ct2")), sources, **wishes)
    assert [list(result.ids) for result in found] == [results[0].ids for results in theirs]
    assert [result.score for result in found] == pytest.approx([results[0].score for results in theirs], abs=1e-4)
    if num_beams == 1:
        assert [[*result.ids, END] for result in found] == [golden["target_ids"] for golden in GOLDENS]
