"""No false alarms: honest files pass, whatever their weights. The whole exam is ``benchmarks.verifier_exam``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from documents import first_command
from exported_models import EVERY_KIND, Exported
from honest import ARCHITECTURES, DEMO, WEIGHTS, examine_honest, weights_of
from subject import Subject

SETS = ["normal, 0.02", "normal, 0.2", "normal, 0.7", "low rank", "heavy tails", "sparse"]


def test_honest_files_pass_with_whatever_weights(translation: Exported) -> None:
    """The same graphs with other weights in them, from almost flat to so large that attention picks single keys."""
    found = list(examine_honest("translation", SETS, translation.path))
    assert [row.weights for row in found] == SETS
    assert [(row.verdict, row.findings) for row in found] == [("passed", ())] * len(SETS)
    assert all(row.worst_ratio < 4 and row.worst_structure < 0.1 for row in found)


def exported_before(architecture: str, exports: Callable[[str], Exported]) -> Callable[[str], Path] | None:
    """Where the graphs of an architecture are if other tests export it too: weights are put into copies."""
    if architecture == DEMO:
        return lambda graph: first_command().bundle / f"{graph}.onnx"
    return exports(architecture).path if architecture in EVERY_KIND else None


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "translation"])
def test_honest_files_of_every_architecture_pass(architecture: str, exports: Callable[[str], Exported]) -> None:
    chosen = ["as trained"] if architecture == DEMO else ["normal, 0.5", "Xavier"]
    found = list(examine_honest(architecture, chosen, exported_before(architecture, exports)))
    assert [(row.verdict, row.findings) for row in found] == [("passed", ())] * len(chosen)


def test_the_exam_has_two_hundred_honest_models_of_twelve_architectures() -> None:
    assert len(ARCHITECTURES) >= 12
    assert len(WEIGHTS) >= 12
    assert sum(len(weights_of(name)) for name in ARCHITECTURES) >= 200


def test_honest_files_pass_when_only_copied(translation: Exported, tmp_path: Path) -> None:
    """So that what is found elsewhere is the fault, not the way it was planted."""
    for name in translation.graphs:
        subject = Subject(translation, name, tmp_path / name)
        onnx.save(onnx.load(subject.path), subject.path)
        assert all(report.passed for report in subject.verify())
        assert subject.moved() < 1
