"""An output file that is written line by line: locks and full disks."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mytx.exporter.decode import partial_output
from mytx.exporter.decode.partial_output import PartialOutput
from mytx.exporter.errors import OptionError


def test_who_waits_for_the_lock_does_not_write_into_what_was_finished_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening the part and locking it, its writer finishes."""
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text("a\n")
    first = PartialOutput(target, source, {}).__enter__()
    first.add("A\n", [b"a\n"])
    second = PartialOutput(target, source, {})
    lock = partial_output._lock

    def finished_first(descriptor: int) -> bool:
        if not first._file.closed:
            first.finish()
        return lock(descriptor)

    monkeypatch.setattr(partial_output, "_lock", finished_first)
    with pytest.raises(OptionError, match="out exists"):
        second.__enter__()
    assert target.read_text() == "A\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_a_disk_that_is_full_at_once_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").write_text("a\n")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(partial_output.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        PartialOutput(tmp_path / "out", tmp_path / "in", {}).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
