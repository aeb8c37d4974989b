"""``mytx-export run``: texts, lines and files through a bundle; interrupted at any moment, a file goes on."""

from __future__ import annotations

import errno
import json
import os
import random
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_support import COMMAND, Result, assert_refused, names, run_here, run_process

from bundles import decoding_bundle, tiny_bundle
from mytx.exporter import open_bundle
from mytx.exporter.decode import partial_output
from mytx.exporter.decode.partial_output import PartialOutput
from mytx.exporter.decode.text import BATCHES
from mytx.exporter.errors import OptionError

Run = Callable[..., Result]
LINES = ["abc", "hg", "", "dddd", "a", "gfedcba"] * 20
KILLS = 6


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    return lambda *arguments: run_here(capfd, "run", decoding_bundle(), *arguments, "--max-length", "6")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.txt"


def translated(lines: list[str], **options: int) -> list[str]:
    """What comes of texts, one at a time."""
    bundle = open_bundle(decoding_bundle())
    found = {line: bundle.generate([line], max_length=6, **options)[0].text or "" for line in set(lines)}
    return [found[line] for line in lines]


# --- texts, and standard input ---------------------------------------------------------------------------------------


def test_texts_are_decoded_in_their_order(run: Run) -> None:
    result = run("abc", "h", "gggg", "--num-beams", 3)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == translated(["abc", "h", "gggg"], num_beams=3)


def test_each_of_the_best_has_its_line(run: Run) -> None:
    result = run("abc", "h", "--num-beams", 3, "--num-hypotheses", 2)
    found = open_bundle(decoding_bundle()).generate(["abc", "h"], num_beams=3, num_hypotheses=2, max_length=6)
    assert result.out.splitlines() == [best.text for generation in found for best in generation.hypotheses]


def test_json_has_scores_ids_and_the_others(run: Run) -> None:
    first = run("abc", "--json").json()
    assert list(first) == ["text", "output", "score", "ids"]
    several = run("abc", "--json", "--num-beams", 2, "--num-hypotheses", 2).json()
    assert several["hypotheses"][0]["output"] == several["output"]
    assert several["hypotheses"][0]["score"] > several["hypotheses"][1]["score"]


def test_a_line_is_answered_before_the_next_is_written() -> None:
    command = [COMMAND, "run", str(decoding_bundle()), "--max-length", "6"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line, expected in zip(["abc", "", "hg"], translated(["abc", "", "hg"]), strict=True):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{expected}\n"
        process.stdin.close()
        assert process.wait(60) == 0


def test_many_lines_of_standard_input(source: Path) -> None:
    with source.open() as lines:
        result = run_process("run", decoding_bundle(), "--max-length", "6", stdin=lines)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == translated(LINES)


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_file_becomes_a_file(run: Run, source: Path, output: Path) -> None:
    result = run("--input", source, "--output", output, "--num-beams", 2, "--batch-size", 3)
    assert (result.code, result.out) == (0, "")
    assert "120 lines" in result.err
    assert output.read_text().split("\n") == [*translated(LINES, num_beams=2), ""]
    assert names(output.parent) == ["in.txt", "out.txt"]


def test_a_file_goes_to_standard_output(run: Run, source: Path) -> None:
    assert run("--input", source).out.splitlines() == translated(LINES)


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b"abc\r\nhg\r\n", ["abc", "hg"]),
        (b"\xef\xbb\xbfabc\nhg", ["abc", "hg"]),
        (b"\n\nabc\n\n", ["", "", "abc", ""]),
        (b"abc", ["abc"]),
        (b"", []),
    ],
    ids=["CRLF", "BOM", "blank", "no end", "empty"],
)
def test_lines_however_they_end(data: bytes, texts: list[str], run: Run, source: Path, output: Path) -> None:
    source.write_bytes(data)
    assert run("--input", source, "--output", output, "--quiet").err == ""
    assert output.read_text() == "".join(f"{text}\n" for text in translated(texts))


def test_json_lines(run: Run, source: Path, output: Path) -> None:
    assert run("--input", source, "--output", output, "--json").code == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["text"] for row in rows] == LINES
    assert [row["output"] for row in rows] == translated(LINES)


@pytest.mark.parametrize(
    "bad", [b"a\xff\n", b"a" * 41 + b"\n", b"a" * (1 << 20) + b"bb\n"], ids=["bytes", "long", "MB"]
)
def test_a_line_that_cannot_be_decoded_is_named_and_can_be_mended(
    bad: bytes, run: Run, source: Path, output: Path
) -> None:
    good = source.read_bytes().splitlines(keepends=True)
    source.write_bytes(b"".join([*good[:50], bad, *good[51:]]))
    result = run("--input", source, "--output", output, "--batch-size", 2)
    assert_refused(result, f"line 51 of {source}")
    assert names(output.parent) == ["in.txt", "out.txt.part", "out.txt.part.json"]
    assert (output.parent / "out.txt.part").read_text().split("\n") == [*translated(LINES[:50]), ""]

    source.write_bytes(b"".join(good))
    result = run("--input", source, "--output", output, "--batch-size", 2)
    assert result.code == 0
    assert "the first 50 lines" in result.err
    assert "70 of them" in result.err
    assert output.read_text().split("\n") == [*translated(LINES), ""]


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


# --- what does not fit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["abc", "--num-beams", "5"], "the target vocabulary has 8 ids"),
        (["abc", "--num-beams", "0"], "num-beams"),
        (["abc", "--num-hypotheses", "2"], "num_hypotheses is 2, and num_beams is 1"),
        (["abc", "--min-length", "7"], "min_length is 7, and max_length is 6"),
        (["abc", "--length-penalty", "-1"], "length_penalty is -1.0"),
        (["abc", "--length-penalty", "nan"], "length_penalty is nan"),
        (["abc", "--provider", "abacus"], "CPUExecutionProvider"),
        (["abc", "--threads", "-1"], "threads"),
        (["abc", "--pad-to", "2147483648"], "--pad-to is 2147483648, the model has 40 positions"),
        (["abc", "--input", "in.txt"], "exclude each other"),
        (["abc", "--output", "out.txt"], "--output goes with --input"),
        (["abc", "--force"], "--force goes with --output"),
        (["--input", "nowhere.txt"], "nowhere.txt: no such file"),
        (["--input", "."], "is a folder"),
        (["--input", "in.txt", "--output", "nowhere/out.txt"], "nowhere is not a folder"),
        (["--input", "in.txt", "--output", "."], "is a folder"),
        (["--input", "in.txt", "--output", "in.txt", "--force"], "both the input and"),
        (["--input", "in.txt", "--output", "/dev/null"], "not a regular file"),
    ],
    ids=str,
)
def test_one_or_two_lines_say_what_does_not_fit(
    arguments: list[str], message: str, run: Run, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source.parent)
    assert_refused(run(*arguments), message)
    assert names(source.parent) == ["in.txt"]


def test_standard_output_may_be_closed() -> None:
    command = f"{shlex.join([COMMAND, 'run', str(decoding_bundle()), 'abc'])} >&-"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("change", [{"lines": -5}, {"bytes": -7}, {"lines": 1e400}])
@pytest.mark.usefixtures("begun")
def test_notes_that_cannot_be(change: dict[str, float], run: Run, source: Path, output: Path) -> None:
    notes = output.with_name(f"{output.name}.part.json")
    notes.write_text(json.dumps(json.loads(notes.read_text()) | change))
    assert_refused(run("--input", source, "--output", output), "is in the way: no out.txt.part.json says what it is")


def test_without_the_graph_for_beams(capfd: pytest.CaptureFixture[str]) -> None:
    assert_refused(run_here(capfd, "run", tiny_bundle(), "abc", "--num-beams", "2"), "--component generate")


def test_nothing_is_written_into_a_bundle(run: Run, source: Path) -> None:
    assert_refused(run("--input", source, "--output", decoding_bundle() / "out.txt"), "is a bundle")


def test_a_finished_file_is_replaced_only_by_force(run: Run, source: Path, output: Path) -> None:
    output.write_text("mine")
    assert_refused(run("--input", source, "--output", output), "exists", "--force")
    assert output.read_text() == "mine"
    assert run("--input", source, "--output", output, "--force").code == 0
    assert output.read_text().split("\n") == [*translated(LINES), ""]


@pytest.fixture
def begun(run: Run, source: Path, output: Path) -> Iterator[bytes]:
    """An output of which 32 lines are done."""
    good = source.read_bytes()
    lines = good.splitlines(keepends=True)
    source.write_bytes(b"".join([*lines[:32], b"\xff\n"]))
    assert run("--input", source, "--output", output, "--batch-size", 2).code == 2
    source.write_bytes(good)
    part = output.with_name("out.txt.part")
    before = part.read_bytes()
    yield before
    assert not part.exists() or part.read_bytes() == before


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
    arguments: list[str], message: str, run: Run, source: Path, output: Path
) -> None:
    assert_refused(run("--input", source, "--output", output, *arguments), message, "--force")
    assert run("--input", source, "--output", output, *arguments, "--force").code == 0
    assert len(output.read_text().splitlines()) == len(LINES)


@pytest.mark.usefixtures("begun")
def test_a_part_of_another_input(run: Run, source: Path, output: Path) -> None:
    source.write_text("hg\n" + source.read_text())
    assert_refused(run("--input", source, "--output", output), "the first 32 lines", "--force")
    assert run("--input", source, "--output", output, "--force").code == 0
    assert output.read_text().split("\n") == [*translated(["hg", *LINES]), ""]


@pytest.mark.usefixtures("begun")
def test_a_part_of_another_bundle(run: Run, source: Path, output: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = run_here(capfd, "run", tiny_bundle(), "--input", source, "--output", output, "--max-length", 6)
    assert_refused(result, "was begun with the bundle with manifest")


@pytest.mark.parametrize("notes", [None, "{", "[]", '{"lines": 3}'])
@pytest.mark.usefixtures("begun")
def test_a_part_that_nothing_explains(notes: str | None, run: Run, source: Path, output: Path) -> None:
    path = output.with_name("out.txt.part.json")
    path.unlink() if notes is None else path.write_text(notes)
    assert_refused(run("--input", source, "--output", output), "in the way")


def test_half_a_line_behind_what_counts_is_cut_off(begun: bytes, run: Run, source: Path, output: Path) -> None:
    output.with_name("out.txt.part").write_bytes(begun + b"AA1 half a li")
    assert run("--input", source, "--output", output).code == 0
    assert output.read_text().split("\n") == [*translated(LINES), ""]


def test_a_part_that_lost_something(begun: bytes, run: Run, source: Path, output: Path) -> None:
    part = output.with_name("out.txt.part")
    os.truncate(part, len(begun) - 1)
    assert_refused(run("--input", source, "--output", output), "bytes")
    part.write_bytes(begun)


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


@pytest.mark.usefixtures("begun")
def test_two_at_once_do_not_write_one_file(run: Run, source: Path, output: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    with output.with_name("out.txt.part").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert_refused(run("--input", source, "--output", output), "another process")


def test_an_output_that_may_not_be_written(
    run: Run, source: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def refusing(path: Path, mode: str = "r", **options: object) -> object:
        if path.name == "out.txt.part":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, mode, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refusing)
    assert_refused(run("--input", source, "--output", output), "cannot write", "Permission denied")
