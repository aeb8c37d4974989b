"""What the exporter's tests share: one thread, and exports that are made once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from cli_support import Result, run_here, save_folder, save_pt, use_exports
from exported_models import KINDS, Exported, build


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Models here are tiny: threads would spend more time waiting for each other than working."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    """The model of a kind with its files; see ``exported_models.KINDS``."""
    made: dict[str, Exported] = {}

    def get(kind: str) -> Exported:
        if kind not in made:
            folder = tmp_path_factory.mktemp(re.sub(r"\W+", "-", kind))
            made[kind] = Exported(build(kind), KINDS[kind][1], folder)
        return made[kind]

    return get


@pytest.fixture(scope="session")
def translation(exports: Callable[[str], Exported]) -> Exported:
    """The translation model with its files."""
    return exports("translation")


@pytest.fixture(scope="session")
def couplet(exports: Callable[[str], Exported]) -> Exported:
    """The couplet model with its files."""
    return exports("couplet")


@pytest.fixture(scope="module")
def folder(couplet: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model on ids as ``save_model`` writes it."""
    return save_folder(couplet, tmp_path_factory.mktemp("couplet") / "saved")


@pytest.fixture(scope="module")
def bare(exports: Callable[[str], Exported], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare transformer of two heads as ``torch.save`` writes it."""
    return save_pt(exports("bare"), tmp_path_factory.mktemp("bare") / "model.pt")


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """The command in this process."""
    return lambda *arguments: run_here(capfd, *arguments)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, couplet: Exported) -> None:
    """The export itself was done before."""
    use_exports(monkeypatch, couplet)
