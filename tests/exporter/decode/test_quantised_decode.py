"""The demo in int8 and int4: the same ids in every runtime that has the operators, and nearly those of float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_decode_demo import WORDS, cases, expected, run_in_node, run_in_openvino

from documents import first_command
from kept import kept
from mytx.exporter import Bundle, export_bundle, open_bundle
from mytx.exporter.runtimes.onnxruntime import RuntimeOptions
from mytx.models import Vocabulary, demo_folder, load_model

pytestmark = pytest.mark.slow

GRAPHS = ("greedy", "generate")


@pytest.fixture(scope="module", params=["int8", "int4"])
def demo(request: pytest.FixtureRequest) -> Bundle:
    def make(folder: Path) -> None:
        vocabulary = Vocabulary.read(demo_folder() / "vocab.json")
        model = load_model(demo_folder()).eval()
        export_bundle(model, folder, formats=[request.param], components=GRAPHS, vocabulary=vocabulary, verify=False)

    return open_bundle(kept(f"demo-{request.param}", make), options=RuntimeOptions(threads=1))


ONLY_INT8 = pytest.mark.parametrize("demo", ["int8"], indirect=True)


@pytest.mark.parametrize("beams", [1, 4])
def test_nearly_all_words_get_the_ids_of_float32(beams: int, demo: Bundle) -> None:
    float32 = open_bundle(first_command().bundle)
    assert float32.format == "onnx"
    pairs = zip(*(bundle.generate(WORDS, num_beams=beams) for bundle in (demo, float32)), strict=True)
    same = sum(one.ids == other.ids for one, other in pairs)
    assert same >= {"int8": 0.96, "int4": 0.88}[demo.format] * len(WORDS)


@ONLY_INT8
@pytest.mark.parametrize("level", ["off", "basic", "extended"])
def test_the_ids_do_not_depend_on_the_optimiser(level: str, demo: Bundle) -> None:
    other = open_bundle(demo.folder, options=RuntimeOptions(threads=1, level=level))
    for beams in (1, 4):
        ours, theirs = (bundle.generate(WORDS[:100], num_beams=beams) for bundle in (demo, other))
        assert sum(one.ids == two.ids for one, two in zip(ours, theirs, strict=True)) >= 99


def same_sentences(demo: Bundle, graph: str, many: list[dict[str, Any]], results: list[dict[str, Any]]) -> float:
    """The share of sentences that another runtime gave the same ids for."""
    same: list[bool] = []
    for case, found in zip(many, results, strict=True):
        ours = expected(demo, graph, case, set(found["inputs"]))
        rows = len(case["src"])
        tokens, lengths = (np.array(found[name]).reshape(rows, -1) for name in ("tokens", "lengths"))
        if tokens.size != ours["tokens"].size:
            same += [False] * rows
            continue
        equal = (tokens == ours["tokens"].reshape(rows, -1)).all(axis=1)
        same += (equal & (lengths == ours["lengths"].reshape(rows, -1)).all(axis=1)).tolist()
    return float(np.mean(same))


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("package", ["onnxruntime-node", "onnxruntime-web"])
def test_in_node_and_webassembly(package: str, graph: str, demo: Bundle) -> None:
    many = cases(demo.entry(graph).contract)
    results = run_in_node(package, demo.folder / demo.entry(graph).file, many)
    assert same_sentences(demo, graph, many, results) >= (1 if package.endswith("node") else 0.95)


@ONLY_INT8
@pytest.mark.parametrize("graph", GRAPHS)
def test_in_openvino(graph: str, demo: Bundle) -> None:
    many = cases(demo.entry(graph).contract)
    results = run_in_openvino(demo.folder / demo.entry(graph).file, demo.entry(graph).contract, many)
    assert same_sentences(demo, graph, many, results) >= 0.9
