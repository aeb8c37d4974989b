"""A bundle is made in a staging folder and moved to its place whole, whatever the name of the place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli_support import contents, names
from mytx.exporter.bundle.staging import Staging
from staged_bundles import fill, make, refused, words_of

# --- commit and reject -----------------------------------------------------------------------------------------------


def test_nothing_is_at_the_place_until_the_bundle_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    with Staging(target) as staging:
        fill(staging.path, "new")
        assert names(tmp_path) == [staging.path.name]
        assert staging.commit() == target
        assert names(tmp_path) == ["bundle"]
    assert words_of(target) == "new"
    assert names(tmp_path) == ["bundle"]


def test_a_bundle_is_replaced_with_force_only(tmp_path: Path) -> None:
    target = make(tmp_path / "bundle")
    assert "--force" in refused(target, "exists", force=False).hint
    assert words_of(target) == "old"
    make(target, "new", force=True)
    assert words_of(target) == "new"
    assert names(tmp_path) == ["bundle"]


def test_the_old_bundle_is_whole_until_the_new_one_is(tmp_path: Path) -> None:
    target = make(tmp_path / "bundle")
    before = contents(target)
    with Staging(target, force=True) as staging:
        fill(staging.path, "new")
        assert contents(target) == before
    assert contents(target) == before


def test_a_rejected_bundle_goes_beside_and_the_old_one_stays(tmp_path: Path) -> None:
    target = make(tmp_path / "bundle")
    before = contents(target)
    for words in ("bad", "worse"):
        with Staging(target, force=True) as staging:
            fill(staging.path, words)
            assert staging.reject() == tmp_path / "bundle.failed"
        assert contents(target) == before
        assert words_of(tmp_path / "bundle.failed") == words
        assert names(tmp_path) == ["bundle", "bundle.failed"]


def test_a_success_removes_what_failed_before(tmp_path: Path) -> None:
    with Staging(tmp_path / "bundle") as staging:
        fill(staging.path, "bad")
        staging.reject()
    assert names(tmp_path) == ["bundle.failed"]
    make(tmp_path / "bundle", "good")
    assert names(tmp_path) == ["bundle"]


def test_an_empty_folder_is_filled_without_force(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    assert words_of(make(tmp_path / "bundle")) == "old"
    assert names(tmp_path) == ["bundle"]


# --- names -----------------------------------------------------------------------------------------------------------


NAMES = [
    "with spaces  two",
    "*",
    "[ab]?",
    "a[!b]c",
    "модель-模型-é",
    ".hidden",
    "-dash",
    "a.b.c",
    "x.failed",
    "$HOME",
    "quote'\"",
    "x" * 200,
]


@pytest.mark.parametrize("name", NAMES)
def test_any_name(name: str, tmp_path: Path, dead_pid: int) -> None:
    (tmp_path / f".{name}.mytx-new-{dead_pid}").mkdir()
    (tmp_path / f".other.mytx-new-{dead_pid}").mkdir()
    target = make(tmp_path / name)
    make(target, "new", force=True)
    assert words_of(target) == "new"
    with Staging(target, force=True) as staging:
        staging.reject()
    assert names(tmp_path) == sorted([f".other.mytx-new-{dead_pid}", name, f"{name}.failed"])


def test_a_name_that_is_not_text(tmp_path: Path) -> None:
    refused(tmp_path / os.fsdecode(b"bad\xff"), r"bad\\udcff' is not UTF-8")
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "path", ["bundle/", "./bundle", "bundle/.", "sub/../bundle", "./sub/.././/bundle//", "../here/bundle"]
)
def test_relative_paths(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here" / "sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    with Staging(Path(path)) as staging:
        fill(staging.path, "old")
        monkeypatch.chdir(tmp_path)  # the way there was settled at the beginning
        staging.commit()
    assert names(tmp_path / "here") == ["bundle", "sub"]
    assert words_of(tmp_path / "here" / "bundle") == "old"


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk/bundle")
    for words in ("old", "new"):  # the first time the link leads nowhere yet
        make(tmp_path / "link", words, force=True)
        assert (tmp_path / "link").readlink() == Path("disk/bundle")
        assert words_of(tmp_path / "disk" / "bundle") == words
    with Staging(tmp_path / "link", force=True) as staging:
        fill(staging.path, "bad")
        staging.reject()
    assert names(tmp_path) == ["disk", "link"]
    assert names(tmp_path / "disk") == ["bundle", "bundle.failed"]


def test_a_link_that_leads_to_itself(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    refused(tmp_path / "loop", "exists and is not a folder")
