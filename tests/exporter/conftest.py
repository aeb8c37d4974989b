"""What the exporter's tests share: models as people save them, and the command in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bundles import tiny_model
from cli_support import Result, run_here, save_folder, save_pt, use_exports
from custom_support import QUICK, forget, write_example
from custom_support import run as run_example
from exported_models import Exported
from mytx.models import save_model


@pytest.fixture(scope="session")
def couplet(exports: Callable[[str], Exported]) -> Exported:
    """The couplet model with its files."""
    return exports("couplet")


@pytest.fixture(scope="module")
def folder(couplet: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model on ids as ``save_model`` writes it."""
    return save_folder(couplet, tmp_path_factory.mktemp("couplet") / "saved")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of ``bundles`` as ``save_model`` writes it."""
    folder = tmp_path_factory.mktemp("model") / "saved"
    save_model(tiny_model(), folder)
    return folder


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


@pytest.fixture(scope="session")
def example_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worked example of a user's own model, with a checkpoint."""
    return write_example(tmp_path_factory.mktemp("translation"))


@pytest.fixture
def inside_example(example_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Its folder is the current one."""
    monkeypatch.chdir(example_folder)
    yield
    forget()


@pytest.fixture(scope="session")
def example_bundle(example_folder: Path) -> Path:
    """It, exported with its contract."""
    with contextlib.chdir(example_folder):
        command = ["onnx", "model.pt", "--model", "translation:build", "--contract", "contract.py", "-o", "bundle"]
        result = run_example(*command, *QUICK)
    forget()
    assert result.code == 0, result.err
    return example_folder / "bundle"
