"""The folder that reproduces an error: its script shows the difference."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import fault_masks
import fault_values as faults
from exported_models import Exported
from located_faults import BATCH_FROZEN, cases, plant, weight_times
from mytx.exporter.errors import BundleError, MytxError, OptionError
from mytx.exporter.locate.places import Block, Place, locate
from mytx.exporter.locate.reproduction import write_reproduction
from planting import Fault, mask_polarity_turned, set_attribute


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(folder / "reproduce.py")], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("fault", "needs_mytx"),
    [
        (faults.epsilon(1e-3), False),
        (faults.epsilon(1.2e-5), True),
        (faults.softmax_over_queries, False),
        (fault_masks.causal_is("GreaterOrEqual"), False),
        (faults.residual_dropped, False),
        (faults.ids_clipped, False),
        (mask_polarity_turned("memory_key_padding_mask"), False),
        (weight_times("layers.1.linear1.weight", 1.01), False),
    ],
)
def test_the_script_shows_the_difference(fault: Fault, needs_mytx: bool, translation: Exported, tmp_path: Path) -> None:
    path = plant(fault, translation, "decoder", tmp_path)
    place = locate(path, translation.graphs["decoder"], cases(translation, "decoder")).introduced[0]
    folder = write_reproduction(path, place, tmp_path / "shown")
    assert {file.name for file in folder.iterdir()} == {"block.onnx", "inputs.npz", "expected.npz", "reproduce.py"}
    script = (folder / "reproduce.py").read_text(encoding="utf-8")
    assert place.module in script
    assert ("mytx.exporter" in script) == needs_mytx
    block = onnx.load(folder / "block.onnx")
    assert len(block.graph.node) == max(1, len(place.block.nodes if place.block else ()))
    result = run(folder)
    assert result.returncode == 1, result.stderr
    assert "from the model" in result.stdout
    assert result.stderr == ""


def test_a_block_that_is_the_models_shows_none(translation: Exported, tmp_path: Path) -> None:
    path = plant(faults.epsilon(1e-3), translation, "decoder", tmp_path)
    place = locate(path, translation.graphs["decoder"], cases(translation, "decoder")).introduced[0]
    folder = write_reproduction(path, place, tmp_path / "shown")
    model = onnx.load(folder / "block.onnx")
    set_attribute(model.graph.node[0], "epsilon", 1e-5)
    onnx.save(model, folder / "block.onnx")
    result = run(folder)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_folder_that_is_there_is_not_touched(translation: Exported, tmp_path: Path) -> None:
    path = plant(faults.epsilon(1e-3), translation, "decoder", tmp_path)
    place = locate(path, translation.graphs["decoder"], cases(translation, "decoder")).introduced[0]
    folder = tmp_path / "there"
    folder.mkdir()
    with pytest.raises(BundleError, match="exists"):
        write_reproduction(path, place, folder)
    assert list(folder.iterdir()) == []


def test_what_cannot_be_written_leaves_nothing(translation: Exported, tmp_path: Path) -> None:
    values = np.ones(2)
    place = Place("m", "v", "n", (), 1.0, 1.0, 0.1, "case", Block((10**6,), {"v": values}, values, 0.1))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(IndexError):
        write_reproduction(translation.path("decoder"), place, tmp_path / "new")
    assert sorted(tmp_path.iterdir()) == before


def test_a_node_that_fails_has_nothing_to_compare(translation: Exported, tmp_path: Path) -> None:
    path = plant(BATCH_FROZEN, translation, "decoder", tmp_path)
    place = locate(path, translation.graphs["decoder"], cases(translation, "decoder")).introduced[0]
    with pytest.raises(OptionError, match="fails"):
        write_reproduction(path, place, tmp_path / "new")
    assert issubclass(OptionError, MytxError)
