"""A staging folder does not replace what is not a bundle, and does not lose files that others put there."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_support import contents
from mytx.exporter.bundle.manifest import MANIFEST
from mytx.exporter.bundle.staging import Staging, is_bundle
from staged_bundles import fill, make, refused, words_of


def test_a_file_in_the_place(tmp_path: Path) -> None:
    (tmp_path / "bundle").write_text("mine")
    refused(tmp_path / "bundle", "exists and is not a folder")
    assert (tmp_path / "bundle").read_text() == "mine"


@pytest.mark.parametrize(
    "manifest",
    [None, "", "{", "[]", "{}", '{"name": "a web page", "icons": []}', '{"format": 1, "files": 3}', b"\xff\xfe"],
)
def test_a_folder_that_is_not_a_bundle_is_never_replaced(manifest: str | bytes | None, tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    target.mkdir()
    (target / "thesis.tex").write_text("mine")
    if manifest is not None:
        (target / MANIFEST).write_bytes(manifest.encode() if isinstance(manifest, str) else manifest)
    before = contents(target)
    assert not is_bundle(target)
    refused(target, "is not empty and is not a bundle")
    assert contents(target) == before


@pytest.mark.parametrize("strange", ["model.pt", "data/notes.txt", ".hidden"])
def test_a_file_that_is_not_the_bundles_own_is_not_lost(strange: str, tmp_path: Path) -> None:
    target = make(tmp_path / "bundle")
    (target / strange).write_text("mine")
    assert "move it" in refused(target, f"holds {strange}, which is not a part of the bundle").hint
    assert (target / strange).read_text() == "mine"


def test_a_link_in_the_bundle_is_not_the_bundles_own(tmp_path: Path) -> None:
    target = make(tmp_path / "bundle")
    (target / "link").symlink_to("encoder.onnx")
    refused(target, "holds link")


def test_a_file_that_somebody_put_into_a_failed_bundle_is_not_lost(tmp_path: Path) -> None:
    with Staging(tmp_path / "bundle") as staging:
        fill(staging.path, "bad")
        staging.reject()
    (tmp_path / "bundle.failed" / "notes.txt").write_text("mine")
    refused(tmp_path / "bundle", r"bundle\.failed holds notes\.txt")
    assert (tmp_path / "bundle.failed" / "notes.txt").read_text() == "mine"


def test_a_manifest_that_is_nested_deeply_is_no_bundles(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text("[" * 100_000)
    assert not is_bundle(tmp_path)


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_something_in_the_place_of_a_failed_bundle(kind: str, tmp_path: Path) -> None:
    failed = tmp_path / "bundle.failed"
    if kind == "folder":
        failed.mkdir()
        (failed / "thesis.tex").write_text("mine")
    elif kind == "file":
        failed.write_text("mine")
    else:
        failed.symlink_to(make(tmp_path / "other"))
    before = contents(tmp_path)
    refused(tmp_path / "bundle", r"bundle\.failed is in the way")
    assert contents(tmp_path) == before


def test_the_root_and_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(Path("/"), "cannot be a bundle")
    inside = tmp_path / "bundle" / "inside"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    refused(Path(), "is the folder that you are in")
    refused(Path(".."), "is the folder that you are in")
    assert words_of(make(Path("below"))) == "old"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("/dev/null/bundle", "cannot write to /dev/null: Not a directory"),
        ("/dev/null/parent/bundle", "cannot write to /dev/null/parent: Not a directory"),
        ("/proc/bundle", "cannot write to /proc: "),
        ("/proc/parent/bundle", "cannot write to /proc/parent: "),
    ],
)
def test_places_that_cannot_be_written(place: str, message: str) -> None:
    assert "--output" in refused(Path(place), message).hint


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    refused(tmp_path / "file" / "bundle", "Not a directory|File exists")
    refused(tmp_path / "file" / "more" / "bundle", "Not a directory|File exists")
    assert contents(tmp_path) == {"file": b"mine"}
