"""Recovery from an interrupted replacement, and two processes that make the same bundle."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cli_support import names
from mytx.exporter.bundle import staging as bundle
from mytx.exporter.bundle.staging import Staging, recover
from staged_bundles import fill, make, refused, words_of


@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_swap_interrupted_before_the_new_one_came_is_undone(
    through_a_link: bool, tmp_path: Path, dead_pid: int
) -> None:
    target = make(tmp_path / "bundle")
    target.rename(tmp_path / f".bundle.mytx-old-{dead_pid}")
    (tmp_path / f".bundle.mytx-new-{dead_pid}").mkdir()
    path = target
    if through_a_link:
        path = tmp_path / "link"
        path.symlink_to("bundle")
    recover(path)
    assert words_of(target) == "old"
    assert names(tmp_path) == ["bundle", *(["link"] if through_a_link else [])]


def test_a_swap_interrupted_after_the_new_one_came_is_finished(tmp_path: Path, dead_pid: int) -> None:
    make(tmp_path / "bundle", "old").rename(tmp_path / f".bundle.mytx-old-{dead_pid}")
    with Staging(tmp_path / "elsewhere") as staging:
        fill(staging.path, "new")
        staging.commit().rename(tmp_path / "bundle")
    recover(tmp_path / "bundle")
    assert words_of(tmp_path / "bundle") == "new"
    assert names(tmp_path) == ["bundle"]


def test_the_next_export_recovers_before_it_looks(tmp_path: Path, dead_pid: int) -> None:
    make(tmp_path / "bundle").rename(tmp_path / f".bundle.mytx-old-{dead_pid}")
    refused(tmp_path / "bundle", "exists", force=False)
    assert words_of(tmp_path / "bundle") == "old"


def test_recovering_from_inside_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make(tmp_path / "bundle"))
    recover(Path())
    recover(Path("/"))
    assert words_of(tmp_path / "bundle") == "old"


def test_a_swap_that_lasts_too_long_is_undone_whoever_has_the_number(
    tmp_path: Path, live_pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "PATIENCE", 0.05)
    make(tmp_path / "bundle").rename(tmp_path / f".bundle.mytx-old-{live_pid}")
    recover(tmp_path / "bundle")
    assert words_of(tmp_path / "bundle") == "old"


def test_a_swap_in_the_hands_of_another_process_is_waited_for(tmp_path: Path, live_pid: int) -> None:
    aside = tmp_path / f".bundle.mytx-old-{live_pid}"
    make(tmp_path / "bundle").rename(aside)
    new = make(tmp_path / "new", "new")
    threading.Timer(0.2, new.rename, [tmp_path / "bundle"]).start()
    recover(tmp_path / "bundle")
    assert words_of(tmp_path / "bundle") == "new"
    assert words_of(aside) == "old"


def test_the_staging_folder_of_a_dead_process_goes_and_that_of_a_live_one_stays(
    tmp_path: Path, dead_pid: int, live_pid: int
) -> None:
    for owner in (dead_pid, live_pid, "word", "", 10**30):
        folder = tmp_path / f".bundle.mytx-new-{owner}"
        folder.mkdir()
        (folder / "encoder.onnx").write_text("half")
    make(tmp_path / "bundle")
    assert names(tmp_path) == [f".bundle.mytx-new-{live_pid}", "bundle"]


def test_a_staging_folder_left_by_a_dead_process_that_had_our_number(tmp_path: Path) -> None:
    """As in containers, where every process of a kind gets the same number."""
    stale = tmp_path / f".bundle.mytx-new-{os.getpid()}"
    for recovers in (True, False):
        stale.mkdir()
        (stale / "encoder.onnx").write_text("half")
        if recovers:
            recover(tmp_path / "bundle")
            assert names(tmp_path) == []
    make(tmp_path / "bundle")
    assert names(tmp_path) == ["bundle"]


def test_a_second_export_to_the_same_place_in_the_same_process_leaves_the_first_alone(tmp_path: Path) -> None:
    with Staging(tmp_path / "bundle") as first:
        fill(first.path, "first")
        refused(tmp_path / "bundle", "File exists")
        first.commit()
    assert words_of(tmp_path / "bundle") == "first"


# Two processes make the same bundle, one line on stdin for each step.
MAKER = """
import sys
from pathlib import Path
from mytx.exporter.bundle.staging import Staging, write_json
from mytx.exporter.errors import BundleError
from mytx.exporter.bundle.manifest import MANIFEST, Manifest, describe_files
target, words, force = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "force"
try:
    with Staging(target, force=force) as staging:
        print("started", flush=True)
        input()
        (staging.path / "encoder.onnx").write_text(words)
        (staging.path / "data").mkdir()
        (staging.path / "data" / "weights").write_text(words)
        manifest = Manifest(1, {}, {}, describe_files(staging.path), {}, (), {"passed": True})
        write_json(staging.path / MANIFEST, manifest.to_dict())
        print("filled", flush=True)
        input()
        staging.commit()
        print("done", flush=True)
except BundleError as error:
    print(error.message, flush=True)
"""


class Maker:
    """A process that makes a bundle step by step."""

    def __init__(self, target: Path, words: str, force: str) -> None:
        command = [sys.executable, "-c", MAKER, str(target), words, force]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def goes_on(self) -> str:
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        return self.says()


@pytest.mark.parametrize("force", ["force", "no"])
def test_two_exports_to_the_same_place_at_the_same_time_do_not_destroy_one_another(force: str, tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    if force == "force":
        make(target)
    makers = [Maker(target, words, force) for words in ("first", "second")]
    for maker in makers:
        assert maker.says() == "started"
    for maker in makers:
        assert maker.goes_on() == "filled"
    assert makers[0].goes_on() == "done"
    assert words_of(target) == "first"
    if force == "force":
        assert makers[1].goes_on() == "done"
        assert words_of(target) == "second"
    else:
        assert makers[1].goes_on() == f"{target} exists"
        assert words_of(target) == "first"
    for maker in makers:
        maker.process.communicate()
        assert maker.process.returncode == 0
    assert names(tmp_path) == ["bundle"]
