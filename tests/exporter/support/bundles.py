"""Small bundles, made once a session for all tests that read or damage one."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kept import kept
from mytx.exporter import export_bundle
from mytx.exporter.bundle.manifest import describe_files
from mytx.exporter.formats.table import PLAIN
from mytx.models import Model, TranslationModel
from mytx.models.vocab import Vocabulary

LETTERS = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3} | {letter: 4 + n for n, letter in enumerate("abcdefgh")}
SOUNDS = {"<pad>": 0, "<s>": 1, "</s>": 2} | {sound: 3 + n for n, sound in enumerate(["AA1", "B", "K", "D", "EH0"])}


@functools.cache
def tiny_bundle() -> Path:
    """The folder of a bundle with the graphs that do not decode; copy it before you change it."""
    return _export("tiny", PLAIN)


@functools.cache
def whole_bundle() -> Path:
    """The folder of a bundle with all graphs; it takes much longer to make."""
    return _export("whole", ())


@functools.cache
def decoding_bundle() -> Path:
    """The folder of a bundle with the graphs that decode alone, not verified: those who test that do it elsewhere."""
    return _export("decoding", ("step", "prefill", "greedy", "generate"), verify=False)


@functools.cache
def shared_bundle() -> Path:
    """The folder of a bundle whose files share their weights; copy it before you change it."""
    return _export("shared", PLAIN, weights="shared", level="quick")


def _export(name: str, components: tuple[str, ...], verify: bool = True, **options: Any) -> Path:
    def make(folder: Path) -> None:
        vocabulary = Vocabulary(LETTERS, SOUNDS)
        result = export_bundle(
            tiny_model(), folder, components=components, vocabulary=vocabulary, verify=verify, **options
        )
        assert result.passed is (True if verify else None)

    return kept(f"{name}-bundle", make)


def tiny_model() -> TranslationModel:
    """Random weights, but the same ones each time: a seed with which some texts end by themselves and others do not."""
    torch.manual_seed(28)
    return TranslationModel(len(LETTERS), len(SOUNDS), 16, 2, 1, 2, 24, 0.1, max_length=40)


def arrays_of(model: Model) -> dict[str, np.ndarray]:
    """The weights of a model as numpy arrays."""
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def copy_of_bundle(folder: Path, bundle: Path | None = None) -> Path:
    """A bundle in ``folder`` to do as one likes with."""
    return Path(shutil.copytree(bundle or tiny_bundle(), folder / "bundle"))


def edit_manifest(bundle: Path, **changes: object) -> None:
    """Replace top-level fields of the manifest."""
    path = bundle / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def relist(bundle: Path) -> None:
    """Make the manifest say what the files are, as a tool that writes both would."""
    edit_manifest(bundle, files=[vars(entry) for entry in describe_files(bundle)])
