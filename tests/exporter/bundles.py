"""A small bundle, made once for all tests that need one to look at or to damage."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path

import torch

from mytx.exporter import export_bundle
from mytx.models import TranslationModel
from mytx.models.vocab import Vocabulary

LETTERS = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3} | {letter: 4 + n for n, letter in enumerate("abcdefgh")}
SOUNDS = {"<pad>": 0, "<s>": 1, "</s>": 2} | {sound: 3 + n for n, sound in enumerate(["AA1", "B", "K", "D", "EH0"])}


@functools.cache
def tiny_bundle() -> Path:
    """The folder of the bundle; copy it before you change it."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    result = export_bundle(tiny_model(), folder / "bundle", vocabulary=Vocabulary(LETTERS, SOUNDS))
    assert result.passed
    return folder / "bundle"


def tiny_model() -> TranslationModel:
    """Random weights, but the same ones each time: a seed with which some texts end by themselves and others do not."""
    torch.manual_seed(28)
    return TranslationModel(len(LETTERS), len(SOUNDS), 16, 2, 1, 2, 24, 0.1, max_length=40)


def copy_of_bundle(folder: Path) -> Path:
    """A bundle in ``folder`` to do as one likes with."""
    return Path(shutil.copytree(tiny_bundle(), folder / "bundle"))


def edit_manifest(bundle: Path, **changes: object) -> None:
    """Replace top-level fields of the manifest."""
    path = bundle / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
