"""When making a bundle fails, no file or folder of it is left, and the old bundle is still there."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cli_support import contents, names
from mytx.exporter.bundle import staging as bundle
from mytx.exporter.bundle.staging import Staging
from mytx.exporter.errors import BundleError
from staged_bundles import fail, fill, make, refused, words_of


@pytest.mark.parametrize("error", [RuntimeError, OSError, BundleError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("old", [True, False])
def test_nothing_is_left_when_the_making_fails(error: type[BaseException], old: bool, tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    if old:
        make(target)
    before = contents(tmp_path)
    fail(target, error)
    assert contents(tmp_path) == before


def test_parent_folders_are_made_and_go_again_when_the_making_fails(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    target = tmp_path / "a" / "b" / "c" / "bundle"
    fail(target)
    assert contents(tmp_path) == {"a": None}
    with Staging(target) as staging:
        fill(staging.path, "bad")
        staging.reject()
    assert words_of(tmp_path / "a" / "b" / "c" / "bundle.failed") == "bad"
    make(target)
    assert names(target.parent) == ["bundle"]


def test_parent_folders_stay_when_another_has_put_something_there(tmp_path: Path) -> None:
    fail(tmp_path / "a" / "b" / "bundle", meanwhile=lambda: (tmp_path / "a" / "mine").write_text("mine"))
    assert contents(tmp_path) == {"a": None, "a/mine": b"mine"}


def test_parent_folders_go_again_when_the_staging_folder_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = Path.mkdir

    def full(self: Path, *arguments: Any, **options: Any) -> None:
        if "mytx-new" in self.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        mkdir(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", full)
    refused(tmp_path / "a" / "b" / "bundle", "No space left on device")
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_when_the_new_one_cannot_be_moved_in_the_old_one_comes_back(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "bundle")
    rename = Path.rename

    def fails(self: Path, target: Path) -> Path:
        if "mytx-new" in self.name:
            raise error("planted")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fails)
        with pytest.raises(error):
            make(tmp_path / "bundle", "new", force=True)
    assert words_of(tmp_path / "bundle") == "old"
    assert names(tmp_path) == ["bundle"]


def test_ctrl_c_does_not_disturb_the_swap_nor_the_cleaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, rmtree = Path.rename, bundle.shutil.rmtree

    def pressed_rename(self: Path, target: Path) -> Path:
        os.kill(os.getpid(), signal.SIGINT)
        return rename(self, target)

    def pressed_rmtree(*arguments: Any, **options: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        rmtree(*arguments, **options)

    make(tmp_path / "bundle")
    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", pressed_rename)
        patch.setattr(bundle.shutil, "rmtree", pressed_rmtree)
        make(tmp_path / "bundle", "new", force=True)
        assert words_of(tmp_path / "bundle") == "new"
        fail(tmp_path / "bundle")
        assert names(tmp_path) == ["bundle"]
        with Staging(tmp_path / "bundle", force=True) as staging:
            fill(staging.path, "bad")
            staging.reject()
    assert signal.getsignal(signal.SIGINT) is handler
    assert words_of(tmp_path / "bundle") == "new"
    assert words_of(tmp_path / "bundle.failed") == "bad"
    assert names(tmp_path) == ["bundle", "bundle.failed"]
