"""Where ``--junit`` and ``--html`` may be written: places that are refused, and files that are replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bundles import copy_of_bundle, tiny_bundle
from cli_support import Run, assert_refused, contents, names
from mytx.exporter import pipeline
from mytx.exporter import verification as check
from mytx.exporter.report import files as report_files
from mytx.exporter.report.files import check_places, write_whole

# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is exported or verified: what is refused is refused before."""
    for module, name in ((check, "verify_bundle"), (pipeline, "export_bundle")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("the work was begun"))


# The words of the path, and those of the message.
REFUSED = [
    ("missing/x", "there is no folder"),
    ("", "is a folder"),
    ("bundle", "is in the bundle"),
    ("bundle/x", "is in the bundle"),
    ("bundle/deep/x", "is in the bundle"),
    ("link/x", "is in the bundle"),
    ("file/x", "there is no folder"),
    ("pipe", "is not a file"),
    ("/proc/x", "cannot be written"),
    ("/dev/null", "is not a file"),
]


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("option", ["--junit", "--html"])
@pytest.mark.parametrize(("place", "words"), REFUSED)
def test_a_place_that_cannot_be_is_refused_before_the_work(
    option: str, place: str, words: str, run: Run, tmp_path: Path
) -> None:
    copy_of_bundle(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "bundle")
    (tmp_path / "file").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    before = contents(tmp_path / "bundle"), names(tmp_path)
    assert_refused(run("verify", tmp_path / "bundle", option, tmp_path / place), words, option)
    assert (contents(tmp_path / "bundle"), names(tmp_path)) == before


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("command", ["onnx", "torchscript", "pt2", "all"])
@pytest.mark.parametrize("place", ["new/x", "new", "new.failed/x", "missing/x", "saved/../new/x"])
def test_an_export_refuses_a_place_in_what_will_be_the_bundle(
    command: str, place: str, folder: Path, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "saved").mkdir()
    assert_refused(run(command, folder, "-o", tmp_path / "new", "--junit", tmp_path / place, "-q"), "--junit")
    assert names(tmp_path) == ["saved"]


@pytest.mark.usefixtures("no_work")
def test_one_place_for_both_and_a_file_that_is_read_are_refused(run: Run, tmp_path: Path) -> None:
    same = tmp_path / "x"
    assert_refused(run("verify", tiny_bundle(), "--junit", same, "--html", same), "is written already")
    case = tmp_path / "case.npz"
    case.write_bytes(b"mine")
    assert_refused(run("verify", tiny_bundle(), "--case", case, "--html", case), "is read already")
    assert case.read_bytes() == b"mine"


@pytest.mark.usefixtures("no_work")
def test_options_that_leave_nothing_to_write_are_refused(folder: Path, run: Run, tmp_path: Path) -> None:
    place = tmp_path / "x"
    assert_refused(run("verify", tiny_bundle(), "--show-plan", "--html", place), "--show-plan")
    assert_refused(run("onnx", folder, "-o", tmp_path / "b", "--no-verify", "--junit", place), "--no-verify")
    assert names(tmp_path) == []


def test_a_file_that_is_read_only_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "x"
    place.write_text("mine")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anything
    with pytest.raises(report_files.OptionError, match="is read-only"):
        check_places({"--junit": place}, [])


# --- writing ---------------------------------------------------------------------------------------------------------


def test_where_writing_fails_the_old_file_stays_whole_and_nothing_else_is_left(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "parity.xml"
    place.write_text("old")

    def full(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    result = run("verify", tiny_bundle(), "--junit", place)
    assert result.code == 2
    assert "--junit" in result.err
    assert "No space left on device" in result.err
    assert "Passed: 3 files agree" in result.out  # the result is known, whatever becomes of the file
    assert (names(tmp_path), place.read_text()) == (["parity.xml"], "old")


def test_a_file_is_replaced_keeps_its_mode_and_a_link_to_it_stays_one(tmp_path: Path) -> None:
    place, link = tmp_path / "parity.xml", tmp_path / "link"
    place.write_text("old")
    place.chmod(0o640)
    link.symlink_to(place)
    write_whole("--junit", link, b"new")
    assert (place.read_text(), place.stat().st_mode & 0o777, link.is_symlink()) == ("new", 0o640, True)
    umask = os.umask(0o022)
    os.umask(umask)
    write_whole("--junit", tmp_path / "fresh", b"new")
    assert (tmp_path / "fresh").stat().st_mode & 0o777 == 0o666 & ~umask
