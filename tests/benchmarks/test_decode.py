"""The benchmark of decoding compares engines that give equal results, and prints its measurements."""

from __future__ import annotations

import pytest
import torch

from benchmarks.decode import (
    NEVER,
    decoded_bytes,
    end_at_random,
    markdown,
    measure,
    random_sources,
    summary,
    take_turns,
)
from benchmarks.decode_engines import Files, ct2_engine, mytx_engine, plain_engine
from mytx.models import Generator, TranslationModel, build_preset


def small_model() -> TranslationModel:
    torch.manual_seed(0)
    return TranslationModel(50, 60, 32, 4, 2, 2, 64).eval()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    model = small_model()
    model.classification.bias.data[model.config.eos_id] = NEVER
    return Files.write(
        model, tmp_path_factory.mktemp("decode"), ["fp32", "int8"], beams=True, plain=True, optimum=False
    )


def test_engines_give_the_same(files: Files) -> None:
    sources = [*random_sources(files.model, 2, 5), *random_sources(files.model, 1, 3)]
    for beams in (1, 2):
        engines = [mytx_engine(files, "fp32", 1, beams > 1), ct2_engine(files, 1, "float32")]
        if beams == 1:
            engines.append(plain_engine(files, 1))
        first, *others = [engine(sources, beams, 6) for engine in engines]
        assert [len(ids) for ids in first] == [6, 6, 6]
        assert all(other == first for other in others)


def test_a_row_has_ratios_and_the_share_of_the_bandwidth(files: Files) -> None:
    engines = {"mytx": mytx_engine(files, "fp32", 1, False), "ctranslate2": ct2_engine(files, 1, "float32")}
    row = measure(engines, files, random_sources(files.model, 1, 5), 1, 4, 1, 1)
    assert row["steps"] == 4
    assert row["same_as_ctranslate2"] == 1
    assert row["ratio_to_ctranslate2"] > 0
    assert row["share_of_bandwidth"] > 0
    row |= {"model": "tiny", "precision": "fp32"}
    rows = [row, {**row, "ratio_to_ctranslate2": 4 * row["ratio_to_ctranslate2"]}]
    assert summary(rows)["mean_ratio_to_ctranslate2"] == pytest.approx(2 * row["ratio_to_ctranslate2"], abs=2e-3)
    assert len(markdown(rows).splitlines()) == 4


def test_the_engine_of_int8_runs_the_file_of_int8(files: Files) -> None:
    sources = random_sources(files.model, 4, 5)
    found = mytx_engine(files, "int8", 1, True)(sources, 2, 6)
    assert [len(ids) for ids in found] == [6] * 4
    assert 0.2 < decoded_bytes(files.model, "int8") / decoded_bytes(files.model) < 0.35
    (files.folder / "generate.int8.onnx").rename(files.folder / "away")
    with pytest.raises(Exception, match=r"generate\.int8\.onnx"):
        mytx_engine(files, "int8", 1, True)
    (files.folder / "away").rename(files.folder / "generate.int8.onnx")


def test_a_step_reads_all_of_the_decoder_but_the_memorys_projections_and_embeddings() -> None:
    width, hidden, vocabulary = 32, 64, 60
    layer = 6 * width * (width + 1) + 2 * width * hidden + width + hidden + 6 * width
    assert decoded_bytes(small_model()) == 4 * (2 * layer + 2 * width + vocabulary * (width + 1))


def test_sentences_end_at_different_steps() -> None:
    torch.manual_seed(0)
    model = build_preset("tiny").eval()
    end_at_random(model, random_sources(model, 32, 20, seed=1), 40)
    _, lengths, _ = Generator(model)(torch.tensor(random_sources(model, 16, 20)), max_length=40)
    assert len(set(lengths.flatten().tolist())) > 3


def test_engines_take_turns() -> None:
    order: list[str] = []
    seconds, results = take_turns({name: lambda name=name: order.append(name) or name for name in "ab"}, 2)
    assert order == list("ababab")
    assert results == {"a": "a", "b": "b"}
    assert set(seconds) == {"a", "b"}
