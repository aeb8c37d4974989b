"""``Bundle.generate`` gives the ids of PyTorch for every batch and graph; inputs that do not fit raise an error."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from bundles import decoding_bundle, tiny_bundle, tiny_model
from mytx.exporter import Bundle, BundleError, Generation, Hypothesis, MytxError, OptionError, open_bundle
from mytx.exporter.bundle.generation import batches_of, padded
from mytx.exporter.runtimes.onnxruntime import RuntimeOptions
from mytx.models import Generator

TIE = 1e-4  # a decision by less than this can go either way in float32
RNG = np.random.default_rng(5)
SOURCES: list[list[int]] = [RNG.integers(0, 12, RNG.integers(1, 15)).tolist() for _ in range(40)]


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return open_bundle(decoding_bundle())


@pytest.fixture
def halves() -> Bundle:
    """A bundle without a graph that decodes."""
    return open_bundle(tiny_bundle())


def in_pytorch(source: list[int], **options: Any) -> tuple[list[tuple[int, ...]], list[float], float]:
    """Ids and scores of the results for one sentence, and the margin."""
    generator = Generator(tiny_model().eval())
    tokens, lengths, scores, margin = generator.search(torch.tensor([source]), **options)
    ids = [tuple(row[:length].tolist()) for row, length in zip(tokens[0], lengths[0], strict=True)]
    return ids, scores[0].tolist(), margin.item()


def check(found: list[Generation], **options: Any) -> int:
    """Hold results against PyTorch's; returns how many did not tie."""
    clear = 0
    for source, generation in zip(SOURCES, found, strict=True):
        ids, scores, margin = in_pytorch(source, **options)
        if margin > TIE:
            clear += 1
            assert [hypothesis.ids for hypothesis in generation.hypotheses] == ids
            assert [hypothesis.score for hypothesis in generation.hypotheses] == pytest.approx(scores, abs=1e-4)
    return clear


# --- the same as PyTorch ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_length": 3},
        {"max_length": 6, "min_length": 6, "length_penalty": 0.0},
        {"num_beams": 2, "max_length": 9, "length_penalty": 0.6},
        {"num_beams": 4, "num_hypotheses": 3, "max_length": 12, "length_penalty": 2.0},
        {"num_beams": 4, "num_hypotheses": 4, "length_penalty": 0.0, "min_length": 2},
    ],
    ids=str,
)
def test_ids_and_scores_are_those_of_the_generator(options: dict[str, Any], bundle: Bundle) -> None:
    assert check(bundle.generate(SOURCES, **options), **options) > 20


@pytest.mark.parametrize(
    "options",
    [{}, {"max_length": 3, "length_penalty": 0.0}, {"max_length": 6, "min_length": 4, "length_penalty": 2.0}],
    ids=str,
)
def test_without_a_graph_that_decodes_the_halves_do_it(options: dict[str, Any], halves: Bundle) -> None:
    assert check(halves.generate(SOURCES, **options), **options) > 20


def test_generate_serves_one_beam_where_there_is_no_greedy_graph() -> None:
    only = open_bundle(decoding_bundle())
    found = only.generate(SOURCES)
    del only.manifest.graphs["greedy.onnx"]
    assert [result.ids for result in only.generate(SOURCES)] == [result.ids for result in found]


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_the_size_of_batches_changes_nothing(batch_size: int, bundle: Bundle) -> None:
    found = bundle.generate(SOURCES, num_beams=3, batch_size=batch_size)
    assert check(found, num_beams=3) > 20


def test_results_are_in_the_order_of_the_inputs_with_little_padding() -> None:
    batches = list(batches_of(SOURCES, 8))
    assert sorted(place for batch in batches for place in batch) == list(range(len(SOURCES)))
    lengths = [len(SOURCES[place]) for batch in batches for place in batch]
    assert lengths == sorted(lengths, reverse=True)
    src, padding = padded([[4, 5], [6]], 0)
    assert src.tolist() == [[4, 5], [6, 0]]
    assert padding.tolist() == [[False, False], [False, True]]


def test_texts_and_ids_give_the_same(bundle: Bundle) -> None:
    by_text, by_ids = bundle.generate(["hg"])[0], bundle.generate([np.array([11, 10])])[0]
    assert by_text == by_ids == Generation((Hypothesis(by_ids.ids, by_ids.score, bundle.translate("hg")),))
    assert (by_text.ids, by_text.score) == (by_text.hypotheses[0].ids, by_text.hypotheses[0].score)


def test_an_empty_input_has_empty_results(bundle: Bundle) -> None:
    found = bundle.generate(["abc", "", " "], num_beams=2, num_hypotheses=2)
    assert found[0] == bundle.generate(["abc"], num_beams=2, num_hypotheses=2)[0]
    assert found[1] == found[2] == Generation((Hypothesis((), 0.0, ""),) * 2)
    assert bundle.generate([[], []]) == [Generation((Hypothesis((), 0.0, ""),))] * 2


@pytest.mark.parametrize("source", [[0], [0, 0, 0]])
def test_a_source_of_nothing_but_padding_ids_is_decoded_like_any_other(source: list[int], bundle: Bundle) -> None:
    assert bundle.generate([source])[0].ids == in_pytorch(source)[0][0]


def test_padding_of_a_source_is_not_masked(bundle: Bundle, halves: Bundle) -> None:
    expected = in_pytorch([11, 10, 0, 0, 0])[0][0]
    assert bundle.generate([[11, 10]], pad_to=5)[0].ids == expected
    assert halves.generate(["hg"], pad_to=5)[0].ids == expected
    assert bundle.translate("hg", pad_to=5) == bundle.vocabulary.decode_target(expected)


def test_progress_is_told_after_each_batch(bundle: Bundle) -> None:
    told: list[int] = []
    bundle.generate([[4]] * 5 + [[]], batch_size=2, max_length=2, progress=told.append)
    assert told == [3, 5, 6]


def test_without_a_vocabulary_there_is_no_text(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: path.name != "vocab.json" and is_file(path))
    fresh = open_bundle(decoding_bundle(), check=False)
    assert fresh.generate([[4, 5]])[0].text is None
    with pytest.raises(BundleError, match="no vocab"):
        fresh.generate(["ab"])


def test_no_torch_is_needed() -> None:
    code = (
        "import sys; from mytx.exporter import open_bundle;"
        f"open_bundle({str(decoding_bundle())!r}).generate(['abc', 'h'], num_beams=2, max_length=3);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- what does not fit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 41}, "max_length is 41, and the model has 40 positions"),
        ({"max_length": 0}, "max_length is 0"),
        ({"max_length": 2.5}, "max_length is 2.5"),
        ({"num_beams": 0}, "num_beams is 0"),
        ({"num_beams": 5}, "num_beams is 5, and the target vocabulary has 8 ids"),
        ({"num_beams": True}, "num_beams is True"),
        ({"num_hypotheses": 2}, "num_hypotheses is 2, and num_beams is 1"),
        ({"num_hypotheses": 0}, "num_hypotheses is 0"),
        ({"min_length": 5, "max_length": 4}, "min_length is 5, and max_length is 4"),
        ({"min_length": -1}, "min_length is -1"),
        ({"length_penalty": -0.5}, "length_penalty is -0.5"),
        ({"length_penalty": math.nan}, "length_penalty is nan"),
        ({"length_penalty": math.inf}, "length_penalty is inf"),
        ({"length_penalty": 1e300}, "length_penalty is 1e+300"),
        ({"length_penalty": 30, "max_length": 30}, "scores are divided by length ** length_penalty"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"pad_to": 2}, "3 tokens, --pad-to is 2"),
        ({"pad_to": 41}, "--pad-to is 41, the model has 40 positions"),
        ({"pad_to": 2**31}, "the model has 40 positions"),
        ({"pad_to": 10**24}, "the model has 40 positions"),
        ({"pad_to": 3.5}, "pad_to is 3.5"),
        ({"pad_to": "9"}, "pad_to is '9'"),
        ({"length_penalty": "1"}, "length_penalty is '1'"),
    ],
    ids=str,
)
def test_a_number_that_does_not_fit_is_named_with_its_limit(
    options: dict[str, Any], message: str, bundle: Bundle
) -> None:
    with pytest.raises(OptionError) as caught:
        bundle.generate(["abc"], **options)
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "no inputs"),
        ("abc", "one text"),
        ([4, 5], "numbers were given"),
        ([[4, 12]], "id 12 is outside the vocabulary of 12"),
        ([[-1]], "id -1"),
        ([[4.5]], "an id is 4.5"),
        ([[4] * 41], "41 tokens, the model has 40 positions"),
        (["a" * 41], "41 tokens"),
    ],
    ids=str,
)
def test_inputs_that_do_not_fit_are_refused(inputs: Any, message: str, bundle: Bundle) -> None:
    with pytest.raises(OptionError) as caught:
        bundle.generate(inputs)
    assert message in caught.value.message
    assert caught.value.hint


def test_more_beams_without_the_graph_for_them(halves: Bundle) -> None:
    with pytest.raises(BundleError) as caught:
        halves.generate(["abc"], num_beams=2)
    assert "--component generate" in caught.value.hint


def test_a_damaged_configuration_is_said(tmp_path: Path) -> None:
    broken = open_bundle(decoding_bundle())
    broken.folder = tmp_path
    (tmp_path / "config.json").write_text(json.dumps({"max_length": 3}))
    with pytest.raises(BundleError, match="damaged"):
        broken.generate([[4]])


# --- where it runs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("providers", [("cpu",), ("CPUExecutionProvider",), ("CPU", "cpu"), ()])
def test_providers_have_long_and_short_names(providers: tuple[str, ...], bundle: Bundle) -> None:
    chosen = open_bundle(decoding_bundle(), options=RuntimeOptions(threads=1, providers=providers))
    assert chosen.generate([[4, 5]])[0].ids == bundle.generate([[4, 5]])[0].ids
    assert chosen.graph("greedy").session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("options", "message"),
    [(RuntimeOptions(providers=("abacus",)), "no execution provider 'abacus'"), (RuntimeOptions(threads=-1), "-1")],
)
def test_a_runtime_that_is_not_there(options: RuntimeOptions, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        open_bundle(decoding_bundle(), options=options).generate([[4]])
    assert message in caught.value.message


def test_a_provider_that_is_left_out_without_a_word_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
    )
    with pytest.raises(MytxError) as caught:
        open_bundle(decoding_bundle(), options=RuntimeOptions(providers=("cuda",))).generate([[4]])
    assert "cannot use CUDAExecutionProvider" in str(caught.value)
