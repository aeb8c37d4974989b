"""The bundle's folder: made beside its place, moved there whole; what stood there stays whole; nothing is left over."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_support import contents, names

from mytx.exporter.bundle import staging as bundle
from mytx.exporter.bundle.manifest import MANIFEST, Manifest, describe_files
from mytx.exporter.bundle.staging import Staging, is_bundle, recover, write_json
from mytx.exporter.errors import BundleError


def fill(folder: Path, words: str) -> None:
    """Make ``folder`` a bundle of two files."""
    (folder / "encoder.onnx").write_text(words)
    (folder / "data").mkdir()
    (folder / "data" / "weights").write_text(words)
    manifest = Manifest(1, {}, {}, describe_files(folder), {}, (), {"passed": True})
    write_json(folder / MANIFEST, manifest.to_dict())


def make(target: Path, words: str = "old", *, force: bool = False) -> Path:
    with Staging(target, force=force) as staging:
        fill(staging.path, words)
        return staging.commit()


def fail(target: Path, error: type[BaseException] = RuntimeError, meanwhile: Callable[[], Any] = lambda: None) -> None:
    """Begin a bundle at ``target``, and fail."""
    with pytest.raises(error):  # noqa: PT012, SIM117
        with Staging(target, force=True) as staging:
            fill(staging.path, "new")
            meanwhile()
            raise error("planted")


def words_of(folder: Path) -> str:
    """What the bundle was made with; it must be whole."""
    assert names(folder) == ["data", "encoder.onnx", MANIFEST]
    words = (folder / "encoder.onnx").read_text()
    assert (folder / "data" / "weights").read_text() == words
    return words


def refused(target: Path, message: str, *, force: bool = True) -> BundleError:
    with pytest.raises(BundleError, match=message) as caught:
        Staging(target, force=force).__enter__()
    assert caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint
    return caught.value


@pytest.fixture
def dead_pid() -> int:
    """The number of a process that is no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


@pytest.fixture
def live_pid() -> Iterator[int]:
    """The number of another process that lives."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


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


# --- what may not be replaced ----------------------------------------------------------------------------------------


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


# --- nothing is left over --------------------------------------------------------------------------------------------


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


# --- interrupted swaps, and other processes --------------------------------------------------------------------------


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
