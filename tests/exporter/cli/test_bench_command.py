"""``mytx-export bench`` prints a row for every way to decode, and all give the same ids. Speed is not tested."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

from bundles import decoding_bundle, tiny_bundle, tiny_model
from cli_support import Result, assert_refused, run_here
from mytx.exporter import OptionError, open_bundle
from mytx.exporter.decode import bench as benching
from mytx.exporter.decode.bench_torch import decode_cached, decode_prefix
from mytx.models import CachedDecoder, Generator

TINY = {"length": 3, "steps": 5, "rounds": 1, "threads": 1}
IN_TORCH = ["PyTorch, no cache", "PyTorch, cached"]
IN_FILES = ["step.onnx in a loop", "greedy.onnx", "generate.onnx"]


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benching, "STREAMED", 1 << 16)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    return lambda *arguments: run_here(capfd, "bench", *arguments)


def test_every_way_gives_the_same_ids() -> None:
    result = benching.bench(open_bundle(decoding_bundle()), batch=3, beams=2, **TINY)
    assert [(row.name, row.beams) for row in result.rows] == [
        *((name, 1) for name in IN_TORCH + IN_FILES),
        ("PyTorch, cached", 2),
        ("generate.onnx", 2),
    ]
    assert [row.same_ids for row in result.rows] == [1.0] * 7
    assert all(row.tokens_per_second == pytest.approx(3 * 5 / row.seconds) for row in result.rows)
    assert {row.share for row in result.rows} == {None}
    assert result.notes == ()


def test_for_one_sentence_there_is_a_share_of_what_the_memory_allows() -> None:
    result = benching.bench(open_bundle(decoding_bundle()), **TINY)
    weights = dict(tiny_model().named_parameters())
    left_out = ("_embedding", "encoder.", "multihead_attn.k_proj", "multihead_attn.v_proj")
    read = sum(4 * value.numel() for name, value in weights.items() if not any(part in name for part in left_out))
    assert result.step_bytes is not None
    assert read <= result.step_bytes < read + 1000  # and some constants
    for row in result.rows:
        assert row.share == pytest.approx(row.tokens_per_second * result.step_bytes / result.bandwidth)


def test_what_is_measured_in_pytorch_is_the_greedy_search() -> None:
    model = tiny_model().eval()
    src = torch.tensor([[4, 5, 6, 7], [8, 9, 0, 0]])
    padding = torch.tensor([[False] * 4, [False, False, True, True]])
    expected = Generator(model)(src, padding, 7, 7)[0][:, 0].numpy()
    np.testing.assert_array_equal(decode_prefix(model, src, padding, 7), expected)
    np.testing.assert_array_equal(decode_cached(model, CachedDecoder(model), src, padding, 7), expected)


def test_without_pytorch_its_rows_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benching, "find_spec", lambda name: None)
    result = benching.bench(open_bundle(decoding_bundle()), **TINY)
    assert [row.name for row in result.rows] == IN_FILES
    assert "without PyTorch" in result.notes[0]


def test_a_bundle_without_some_graphs_says_which(run: Callable[..., Result]) -> None:
    result = run(tiny_bundle(), "--steps", 3, "--length", 2, "--rounds", 1)
    assert result.code == 0
    assert [line for line in result.out.splitlines() if line.startswith("PyTorch")]
    assert "no greedy.onnx: export it with --component greedy" in result.out


def test_the_command_gives_a_table_or_json(run: Callable[..., Result]) -> None:
    arguments = (decoding_bundle(), "--steps", 3, "--length", 2, "--rounds", 1, "--threads", 1)
    table = run(*arguments)
    assert (table.code, table.err) == (0, "")
    assert all(any(line.startswith(name) for line in table.out.splitlines()) for name in IN_TORCH + IN_FILES)
    found = run(*arguments, "--json", "--quiet").json()
    assert [row["name"] for row in found["rows"]] == IN_TORCH + IN_FILES
    assert set(found) == {field.name for field in dataclasses.fields(benching.BenchResult)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "41"], "max_length is 41, and the model has 40 positions"),
        (["--length", "41"], "length is 41, the model has 40 positions"),
        (["--beams", "5"], "num_beams is 5"),
        (["--batch", "0"], "batch"),
        (["--batch", "2147483648"], "batch is 2147483648"),
        (["--threads", "2147483648"], "threads is 2147483648"),
    ],
    ids=str,
)
def test_sizes_that_the_model_does_not_have(arguments: list[str], message: str, run: Callable[..., Result]) -> None:
    assert_refused(run(decoding_bundle(), *arguments), message)


def test_the_library_checks_sizes_too() -> None:
    with pytest.raises(OptionError, match="rounds is 0"):
        benching.bench(open_bundle(decoding_bundle()), rounds=0)
