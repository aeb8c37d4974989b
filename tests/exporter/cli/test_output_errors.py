"""``mytx-export onnx`` where the output cannot be written: exit code 2, and what is there stays."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bundles import copy_of_bundle
from cli_support import Run, assert_refused, contents, names, run_process, save_folder
from exported_models import Exported
from mytx.exporter import pipeline, verify_bundle
from mytx.exporter.bundle import staging as bundle
from mytx.exporter.formats.onnx import export as onnx_format

# --- 2: the output ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_a_bundle_is_not_replaced_without_force(folder: Path, run: Run, tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    assert run("onnx", folder, "-o", target, "--no-verify", "-q").code == 0
    before = contents(tmp_path)
    assert_refused(run_process("onnx", folder, "-o", target), str(target), "exists", "--force")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("options", [[], ["--force"]])
@pytest.mark.parametrize("manifest", [None, '{"name": "a web page"}'])
def test_a_folder_that_is_no_bundle_is_never_replaced(
    options: list[str], manifest: str | None, folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "thesis"
    target.mkdir()
    (target / "chapter.tex").write_text("mine")
    if manifest:
        (target / "manifest.json").write_text(manifest)
    before = contents(tmp_path)
    assert_refused(run_process("onnx", folder, "-o", target, *options), str(target), "not a bundle", "--output")
    assert contents(tmp_path) == before


def test_a_file_that_lies_in_the_old_bundle_is_not_lost(
    folder: Path, checkpoint: Path, run: Run, quick: None, tmp_path: Path
) -> None:
    target = tmp_path / "bundle"
    assert run("onnx", folder, "-o", target, "--no-verify", "-q").code == 0
    inside = target / "model.pt"
    inside.write_bytes(checkpoint.read_bytes())
    assert_refused(run("onnx", inside, "--nhead", 2, "-o", target, "--force"), "model.pt", "move it")
    assert inside.read_bytes() == checkpoint.read_bytes()


@pytest.mark.parametrize("output", ["file", "file/x", "file/x/y", "/dev/null/x", "/proc/x", "/proc/x/y", "/", "."])
def test_places_where_no_folder_can_be(output: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for options in ([], ["--force"]):
        assert_refused(run_process("onnx", folder, "-o", output, *options, cwd=tmp_path), "hint: ")
    assert contents(tmp_path) == {"file": b"mine"}


def test_a_name_that_is_too_long(folder: Path, place: Path) -> None:
    assert_refused(run_process("onnx", folder, "-o", place / ("x" * 300)), "File name too long", "hint: ")


# --- 2: a full disk --------------------------------------------------------------------------------------------------


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file can grow larger. The system answers "file too large", which is handled like "no space left"."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_on_a_full_disk_nothing_is_left_and_the_old_bundle_stays_whichever_file_does_not_fit(
    folder: Path, run: Run, quick: None, tmp_path: Path
) -> None:
    target = tmp_path / "bundle"
    arguments = ["onnx", folder, "-o", target, "--component", "encoder"]
    assert run(*arguments).code == 0
    before = contents(tmp_path)
    sizes = {path.stat().st_size for path in target.iterdir()}
    for size in sorted({size - 1 for size in sizes} | {size // 2 for size in sizes}):
        if size < 300:
            continue  # the message must fit: it is in a file, too, in this test
        with files_of_at_most(size):
            result = run(*arguments, "--force")
        assert_refused(result, "File too large", "free some space")
        assert contents(tmp_path) == before


def test_on_a_full_disk_the_real_command_says_so_too(
    exports: Callable[[str], Exported], place: Path, tmp_path: Path
) -> None:
    saved = save_folder(exports("average pooling"), tmp_path / "saved")

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    result = run_process("onnx", saved, "-o", place / "new" / "bundle", "--component", "encoder", preexec_fn=limit)
    assert_refused(result, "File too large", "free some space")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_errors_of_the_disk_at_any_step(
    number: int, folder: Path, run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number), "/some/file")

    for module, name in (
        (onnx_format, "save"),
        (pipeline, "write_json"),
        (pipeline, "write_stored"),
        (pipeline, "describe_files"),
        (bundle.Staging, "commit"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            result = run("onnx", folder, "-o", place / "x", "--component", "encoder")
        assert_refused(result, os.strerror(number), "/some/file", "hint: ")
        assert names(place) == []


def test_a_bundle_is_not_made_inside_another(run, tmp_path):
    bundle = copy_of_bundle(tmp_path)
    assert_refused(run("onnx", "-o", bundle / "sub"), "is a bundle")
    assert verify_bundle(bundle).passed
