"""A search in one ONNX file gives the results of the search in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from exported_models import Exported, build, shaken
from mytx.exporter.runtimes.onnx_reference import OnnxReference
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime, RuntimeOptions
from mytx.models import CoupletModel, Generator, TranslationModel
from planting import all_graphs

Sequences = TranslationModel | CoupletModel
TIE = 1e-4  # a decision by less than this can go either way in float32
KINDS = ["translation", "couplet", "norm first, gelu, no bias"]


@pytest.fixture(scope="module")
def decode(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Sequences, dict[bool, Path]]]:
    """A model of a kind, and its two files: greedy, and with beams."""
    made: dict[str, tuple[Sequences, dict[bool, Path]]] = {}

    def get(kind: str) -> tuple[Sequences, dict[bool, Path]]:
        if kind not in made:
            model = shaken(build(kind))
            assert isinstance(model, Sequences)
            exported = Exported(model, None, tmp_path_factory.mktemp("decode"))
            made[kind] = model, {False: exported.path("greedy"), True: exported.path("generate")}
            for path in made[kind][1].values():
                onnx.checker.check_model(str(path))
        return made[kind]

    return get


def inputs(model: Sequences, seed: int) -> dict[str, np.ndarray]:
    """Sources of random lengths, padded on either side or all over, and random wishes."""
    rng = np.random.default_rng(seed)
    batch, length = int(rng.integers(1, 6)), int(rng.integers(1, 9))
    beams = int(rng.choice([1, 2, 4, 5]))
    return {
        "src": rng.integers(0, model.config.src_vocab_size, (batch, length)),
        "src_key_padding_mask": rng.random((batch, length)) < rng.choice([0.0, 0.3, 0.9]),
        "max_length": np.array(rng.choice([1, 2, 5, 30])),
        "min_length": np.array(0 if rng.random() < 0.6 else 1),
        "length_penalty": np.array(rng.choice([0.0, 0.6, 1.0, 2.0]), np.float32),
        "num_beams": np.array(beams),
        "num_hypotheses": np.array(rng.integers(1, beams + 1)),
    }


def expected(model: Sequences, given: dict[str, np.ndarray], beams: bool) -> list[np.ndarray]:
    numbers = {name: given[name].item() for name in ("max_length", "min_length", "length_penalty")}
    if beams:
        numbers |= {name: given[name].item() for name in ("num_beams", "num_hypotheses")}
    src, padding = (torch.from_numpy(given[name]) for name in ("src", "src_key_padding_mask"))
    return [value.numpy() for value in Generator(model).search(src, padding, **numbers)]


def taken(runtime: OnnxRuntime | OnnxReference, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: given[name] for name in runtime.describe().inputs}


@pytest.mark.parametrize("beams", [False, True], ids=["greedy", "beams"])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_lengths_and_scores_are_those_of_pytorch(
    kind: str, beams: bool, decode: Callable[[str], tuple[Sequences, dict[bool, Path]]]
) -> None:
    model, files = decode(kind)
    runtime = OnnxRuntime.open(files[beams])
    judged = 0
    for seed in range(60):
        given = inputs(model, seed)
        tokens, lengths, scores, margin = expected(model, given, beams)
        found = runtime.run(taken(runtime, given))
        np.testing.assert_allclose(np.sort(found["scores"]), np.sort(scores), rtol=1e-4, atol=1e-4)
        clear = margin > TIE
        judged += int(clear.sum())
        np.testing.assert_array_equal(found["lengths"][clear], lengths[clear])
        if clear.all():
            np.testing.assert_array_equal(found["tokens"], tokens)
    assert judged > 100


@pytest.mark.parametrize("level", ["off", "basic", "extended"])
def test_at_every_level_of_optimisation(
    level: str, decode: Callable[[str], tuple[Sequences, dict[bool, Path]]]
) -> None:
    model, files = decode("translation")
    runtime = OnnxRuntime.open(files[True], RuntimeOptions(level=level))
    for seed in range(8):
        given = inputs(model, seed)
        tokens, _, _, margin = expected(model, given, beams=True)
        if (margin > TIE).all():
            np.testing.assert_array_equal(runtime.run(taken(runtime, given))["tokens"], tokens)


@pytest.mark.parametrize("beams", [False, True], ids=["greedy", "beams"])
def test_onnx_reference_gives_the_same_in_float64(
    beams: bool, decode: Callable[[str], tuple[Sequences, dict[bool, Path]]]
) -> None:
    model, files = decode("couplet")
    reference = OnnxReference.open(files[beams], lifted=True)
    model.double()
    try:
        for seed in range(4):
            given = {**inputs(model, seed), "max_length": np.array(6)}
            tokens, lengths, scores, _ = expected(model, given, beams)
            found = reference.run(taken(reference, given))
            np.testing.assert_array_equal(found["tokens"], tokens)
            np.testing.assert_array_equal(found["lengths"], lengths)
            np.testing.assert_allclose(found["scores"], scores, rtol=1e-12)
    finally:
        model.float()


def test_numbers_out_of_range_are_brought_into_it(
    decode: Callable[[str], tuple[Sequences, dict[bool, Path]]],
) -> None:
    model, files = decode("couplet")
    runtime = OnnxRuntime.open(files[True])
    given = taken(runtime, inputs(model, 1))
    odd = {"max_length": np.array(10_000), "min_length": np.array(-3), "num_beams": np.array(0)}
    plain = {"max_length": np.array(model.config.max_length), "min_length": np.array(0), "num_beams": np.array(1)}
    one = {"num_hypotheses": np.array(1)}
    found, meant = runtime.run({**given, **odd, **one}), runtime.run({**given, **plain, **one})
    for name, value in meant.items():
        np.testing.assert_array_equal(found[name], value)


def test_no_sentence_gives_no_result(decode: Callable[[str], tuple[Sequences, dict[bool, Path]]]) -> None:
    model, files = decode("couplet")
    for path in files.values():
        runtime = OnnxRuntime.open(path)
        given = taken(runtime, inputs(model, 1))
        given |= {"src": given["src"][:0], "src_key_padding_mask": given["src_key_padding_mask"][:0]}
        assert [value.shape[0] for value in runtime.run(given).values()] == [0, 0, 0]


def test_a_decode_holds_each_weight_once(decode: Callable[[str], tuple[Sequences, dict[bool, Path]]]) -> None:
    model, files = decode("translation")
    weights = sum(value.numel() * 4 for value in model.state_dict().values())
    for path in files.values():
        tensors = [tensor for part in all_graphs(onnx.load(path).graph) for tensor in part.initializer]
        sizes = [np.prod(tensor.dims) * 4 for tensor in tensors if tensor.data_type == 1]
        assert weights - 200 < sum(sizes) < 1.3 * weights
