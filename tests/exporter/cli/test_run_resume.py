"""``mytx-export run`` goes on where it was interrupted, and refuses a part that does not fit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bundles import decoding_bundle, tiny_bundle
from cli_support import COMMAND, Run, assert_refused, names, run_here, run_process
from decoded_lines import LINES, translated
from mytx.exporter.decode.text import BATCHES

KILLS = 6


# --- interrupted -----------------------------------------------------------------------------------------------------


@pytest.fixture
def long_source(tmp_path: Path) -> Path:
    choose = random.Random(1)
    path = tmp_path / "in.txt"
    path.write_text("".join("".join(choose.choices("abcdefgh", k=choose.randint(0, 12))) + "\n" for _ in range(4000)))
    return path


def lines_done(output: Path) -> int:
    try:
        return int(json.loads(output.with_name("out.txt.part.json").read_text())["lines"])
    except FileNotFoundError:
        return 0


def test_killed_at_random_moments_it_goes_on_where_it_was(long_source: Path, output: Path, tmp_path: Path) -> None:
    command = [
        "run",
        decoding_bundle(),
        "--input",
        long_source,
        "--batch-size",
        "2",
        "--max-length",
        "6",
        "--threads",
        "1",
    ]
    whole = tmp_path / "whole.txt"
    assert run_process(*command, "--output", whole).code == 0
    choose, before = random.Random(0), 0
    for _ in range(KILLS):
        arguments = [COMMAND, *map(str, command), "--output", str(output)]
        with subprocess.Popen(arguments, stderr=subprocess.DEVNULL) as process:
            while lines_done(output) <= before and process.poll() is None:
                time.sleep(0.005)
            time.sleep(choose.random() * 0.05)
            process.kill()
        before = lines_done(output)
        assert before % (2 * BATCHES) == 0
        assert len(output.with_name("out.txt.part").read_bytes().split(b"\n")) > before
    assert 0 < before < 4000, "it was never killed on the way"
    result = run_process(*command, "--output", output)
    assert result.code == 0
    assert f"{4000 - before:,} of them" in result.err
    assert output.read_bytes() == whole.read_bytes()
    assert names(tmp_path) == ["in.txt", "out.txt", "whole.txt"]


def test_ctrl_c_leaves_whole_lines_and_says_how_to_go_on(long_source: Path, output: Path) -> None:
    command = ["run", str(decoding_bundle()), "--input", str(long_source), "--output", str(output), "--batch-size", "1"]
    with subprocess.Popen([COMMAND, *command], stderr=subprocess.PIPE, text=True) as process:
        while not lines_done(output):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines() == ["error: interrupted", "hint: the same command goes on where this one stopped"]
    text = output.with_name("out.txt.part").read_text()
    assert text.endswith("\n")
    assert text.count("\n") == lines_done(output)


# --- a part that was begun before ------------------------------------------------------------------------------------


@pytest.fixture
def begun(decode: Run, source: Path, output: Path) -> Iterator[bytes]:
    """An output of which 32 lines are done."""
    good = source.read_bytes()
    lines = good.splitlines(keepends=True)
    source.write_bytes(b"".join([*lines[:32], b"\xff\n"]))
    assert decode("--input", source, "--output", output, "--batch-size", 2).code == 2
    source.write_bytes(good)
    part = output.with_name("out.txt.part")
    before = part.read_bytes()
    yield before
    assert not part.exists() or part.read_bytes() == before


@pytest.mark.parametrize("change", [{"lines": -5}, {"bytes": -7}, {"lines": 1e400}])
@pytest.mark.usefixtures("begun")
def test_notes_that_cannot_be(change: dict[str, float], decode: Run, source: Path, output: Path) -> None:
    notes = output.with_name(f"{output.name}.part.json")
    notes.write_text(json.dumps(json.loads(notes.read_text()) | change))
    assert_refused(decode("--input", source, "--output", output), "is in the way: no out.txt.part.json says what it is")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-beams", 2], "was begun with num_beams 1, now it is 2"),
        (["--min-length", 1], "was begun with min_length 0, now it is 1"),
        (["--json"], "was begun with json False, now it is True"),
        (["--pad-to", 9], "was begun with pad_to None, now it is 9"),
    ],
)
@pytest.mark.usefixtures("begun")
def test_a_part_that_was_begun_with_other_options(
    arguments: list[str], message: str, decode: Run, source: Path, output: Path
) -> None:
    assert_refused(decode("--input", source, "--output", output, *arguments), message, "--force")
    assert decode("--input", source, "--output", output, *arguments, "--force").code == 0
    assert len(output.read_text().splitlines()) == len(LINES)


@pytest.mark.usefixtures("begun")
def test_a_part_of_another_input(decode: Run, source: Path, output: Path) -> None:
    source.write_text("hg\n" + source.read_text())
    assert_refused(decode("--input", source, "--output", output), "the first 32 lines", "--force")
    assert decode("--input", source, "--output", output, "--force").code == 0
    assert output.read_text().split("\n") == [*translated(["hg", *LINES]), ""]


@pytest.mark.usefixtures("begun")
def test_a_part_of_another_bundle(decode: Run, source: Path, output: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = run_here(capfd, "run", tiny_bundle(), "--input", source, "--output", output, "--max-length", 6)
    assert_refused(result, "was begun with the bundle with manifest")


@pytest.mark.parametrize("notes", [None, "{", "[]", '{"lines": 3}'])
@pytest.mark.usefixtures("begun")
def test_a_part_that_nothing_explains(notes: str | None, decode: Run, source: Path, output: Path) -> None:
    path = output.with_name("out.txt.part.json")
    path.unlink() if notes is None else path.write_text(notes)
    assert_refused(decode("--input", source, "--output", output), "in the way")


def test_half_a_line_behind_what_counts_is_cut_off(begun: bytes, decode: Run, source: Path, output: Path) -> None:
    output.with_name("out.txt.part").write_bytes(begun + b"AA1 half a li")
    assert decode("--input", source, "--output", output).code == 0
    assert output.read_text().split("\n") == [*translated(LINES), ""]


def test_a_part_that_lost_something(begun: bytes, decode: Run, source: Path, output: Path) -> None:
    part = output.with_name("out.txt.part")
    os.truncate(part, len(begun) - 1)
    assert_refused(decode("--input", source, "--output", output), "bytes")
    part.write_bytes(begun)


@pytest.mark.usefixtures("begun")
def test_two_at_once_do_not_write_one_file(decode: Run, source: Path, output: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    with output.with_name("out.txt.part").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert_refused(decode("--input", source, "--output", output), "another process")
