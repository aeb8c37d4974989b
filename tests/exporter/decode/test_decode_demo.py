"""The demo decodes held-out words as PyTorch does: in Python, Node, WebAssembly and OpenVINO."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bundles import decoding_bundle
from documents import first_command
from mytx.exporter import Bundle, open_bundle
from mytx.exporter.bundle.generation import SearchOptions, padded
from mytx.exporter.cases.case import Array
from mytx.exporter.contracts.contract import Contract
from mytx.exporter.runtimes.onnxruntime import RuntimeOptions
from mytx.models import Generator, TranslationModel, Vocabulary, demo_folder, load_model

pytestmark = pytest.mark.slow

TIE = 1e-4  # a decision by less than this can go either way in float32
WORDS = [line.split("\t")[0] for line in (demo_folder() / "heldout.txt").read_text().splitlines()]
PLAIN = {"max_length": 64, "min_length": 0, "length_penalty": 1.0, "num_beams": 1, "num_hypotheses": 1}
NUMBERS: list[dict[str, Any]] = [
    PLAIN,
    {**PLAIN, "max_length": 6},
    {**PLAIN, "min_length": 9, "length_penalty": 2.0, "num_beams": 2},
    {**PLAIN, "length_penalty": 0.0, "num_beams": 5, "num_hypotheses": 3},
]


@pytest.fixture(scope="module")
def demo() -> Bundle:
    return open_bundle(first_command().bundle, options=RuntimeOptions(threads=1))


@functools.cache
def searched(beams: int, penalty: float) -> list[tuple[list[tuple[int, ...]], list[float], float]]:
    """For each word what PyTorch finds: ids and scores of as many results as there are beams, and the margin."""
    found = load_model(demo_folder())
    assert isinstance(found, TranslationModel)
    generator, vocabulary = Generator(found.eval()), Vocabulary.read(demo_folder() / "vocab.json")
    results = []
    for start in range(0, len(WORDS), 50):
        src, mask = padded([vocabulary.encode_source(word) for word in WORDS[start : start + 50]], 0)
        tokens, lengths, scores, margins = generator.search(
            torch.from_numpy(src),
            torch.from_numpy(mask),
            num_beams=beams,
            length_penalty=penalty,
            num_hypotheses=beams,
        )
        for row, many, score, margin in zip(tokens, lengths, scores, margins.tolist(), strict=True):
            ids = [tuple(best[:length].tolist()) for best, length in zip(row, many, strict=True)]
            results.append((ids, score.tolist(), margin))
    return results


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("beams", [1, 2, 4, 5])
def test_ids_are_those_of_pytorch(beams: int, penalty: float, demo: Bundle) -> None:
    found = demo.generate(WORDS, num_beams=beams, length_penalty=penalty, num_hypotheses=beams)
    clear = 0
    for generation, (ids, scores, margin) in zip(found, searched(beams, penalty), strict=True):
        if margin > TIE:
            clear += 1
            assert [best.ids for best in generation.hypotheses] == ids
            assert [best.score for best in generation.hypotheses] == pytest.approx(scores, abs=1e-4)
    assert clear > 180


def test_memory_stays_where_it_is() -> None:
    """2,000 calls with 500 shapes: a runtime that keeps something for each shape would show."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc here")
    rng = np.random.default_rng(0)
    search = open_bundle(decoding_bundle(), options=RuntimeOptions(threads=1)).search("greedy")
    shapes = [(batch, length) for batch in range(1, 26) for length in range(1, 21)]
    rng.shuffle(shapes)
    after: list[int] = []
    for _ in range(4):
        for batch, length in shapes:
            src = rng.integers(0, 12, (batch, length))
            search(src, np.zeros(src.shape, dtype=bool), SearchOptions(max_length=10))
        after.append(resident())
    assert len(shapes) == 500
    assert after[-1] - after[0] < 4 << 20


# --- other runtimes --------------------------------------------------------------------------------------------------


def cases(contract: Contract) -> list[dict[str, Any]]:
    """Batches of words with numbers that the graph takes."""
    vocabulary = Vocabulary.read(demo_folder() / "vocab.json")
    names = {spec.name for spec in contract.inputs}
    made = []
    for numbers in NUMBERS:
        wanted = {name: value for name, value in numbers.items() if name in names}
        for start in (0, 13):
            src, mask = padded([vocabulary.encode_source(word) for word in WORDS[start : start + 13]], 0)
            made.append({"src": src.tolist(), "mask": mask.tolist(), "numbers": wanted})
    return made


def expected(demo: Bundle, graph: str, case: dict[str, Any], taken: set[str]) -> dict[str, Array]:
    """What onnxruntime for Python gives with the numbers that the other runtime took."""
    contract = demo.entry(graph).contract
    numbers = {name: value for name, value in case["numbers"].items() if name in taken}
    numbers = {spec.name: numbers.get(spec.name, spec.default) for spec in contract.inputs if spec.role == "number"}
    given = {name: np.array(value, dtype=contract.input(name).dtype) for name, value in numbers.items()}
    arrays = {"src": np.array(case["src"]), "src_key_padding_mask": np.array(case["mask"])}
    return demo.graph(graph).run({**arrays, **given})


def run_in_node(package: str, path: Path, many: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each case ``inputs``, the names that the graph takes there, and the outputs as flat lists."""
    node = shutil.which("node")
    if not node or subprocess.run([node, "-e", f"require('{package}')"], capture_output=True, check=False).returncode:
        pytest.skip(f"Node has no {package}: npm install it, and set NODE_PATH")
    command = [node, str(Path(__file__).with_name("decode_in_node.js")), package, str(path)]
    done = subprocess.run(command, input=json.dumps(many), capture_output=True, text=True, timeout=300, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_in_openvino(path: Path, contract: Contract, many: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As :func:`run_in_node`; the outputs are arrays."""
    openvino = pytest.importorskip("openvino")
    core = openvino.Core()
    # Where the processor has bfloat16, it would be used.
    compiled = core.compile_model(core.read_model(str(path)), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    names = {name for value in compiled.inputs for name in value.names}
    dtypes = {spec.name: spec.dtype for spec in contract.inputs}
    results = []
    for case in many:
        given = {"src": np.array(case["src"]), "src_key_padding_mask": np.array(case["mask"])}
        given |= {name: np.array(value, dtypes[name]) for name, value in case["numbers"].items() if name in names}
        outputs = compiled(given)
        results.append({"inputs": names, **{key: np.array(outputs[key]) for key in ("tokens", "lengths", "scores")}})
    return results


@pytest.mark.parametrize("graph", ["greedy", "generate"])
@pytest.mark.parametrize("package", ["onnxruntime-node", "onnxruntime-web"])
def test_in_node_and_webassembly(package: str, graph: str, demo: Bundle) -> None:
    many = cases(demo.entry(graph).contract)
    for case, found in zip(many, run_in_node(package, demo.folder / f"{graph}.onnx", many), strict=True):
        ours = expected(demo, graph, case, set(found["inputs"]))
        assert found["tokens"] == ours["tokens"].ravel().tolist()
        assert found["lengths"] == ours["lengths"].ravel().tolist()
        assert found["scores"] == pytest.approx(ours["scores"].ravel().tolist(), abs=1e-4)


@pytest.mark.parametrize("graph", ["greedy", "generate"])
def test_in_openvino(graph: str, demo: Bundle) -> None:
    contract = demo.entry(graph).contract
    many = cases(contract)
    for case, found in zip(many, run_in_openvino(demo.folder / f"{graph}.onnx", contract, many), strict=True):
        ours = expected(demo, graph, case, found["inputs"])
        np.testing.assert_array_equal(found["tokens"], ours["tokens"])
        np.testing.assert_array_equal(found["lengths"], ours["lengths"])
        np.testing.assert_allclose(found["scores"], ours["scores"], atol=1e-4)
