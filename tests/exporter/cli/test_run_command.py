"""``mytx-export run``: texts, lines and files through a bundle."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bundles import decoding_bundle
from cli_support import COMMAND, Run, assert_refused, names, run_process
from decoded_lines import LINES, translated
from mytx.exporter import open_bundle

# --- texts, and standard input ---------------------------------------------------------------------------------------


def test_texts_are_decoded_in_their_order(decode: Run) -> None:
    result = decode("abc", "h", "gggg", "--num-beams", 3)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == translated(["abc", "h", "gggg"], num_beams=3)


def test_each_of_the_best_has_its_line(decode: Run) -> None:
    result = decode("abc", "h", "--num-beams", 3, "--num-hypotheses", 2)
    found = open_bundle(decoding_bundle()).generate(["abc", "h"], num_beams=3, num_hypotheses=2, max_length=6)
    assert result.out.splitlines() == [best.text for generation in found for best in generation.hypotheses]


def test_json_has_scores_ids_and_the_others(decode: Run) -> None:
    first = decode("abc", "--json").json()
    assert list(first) == ["text", "output", "score", "ids"]
    several = decode("abc", "--json", "--num-beams", 2, "--num-hypotheses", 2).json()
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


def test_a_file_becomes_a_file(decode: Run, source: Path, output: Path) -> None:
    result = decode("--input", source, "--output", output, "--num-beams", 2, "--batch-size", 3)
    assert (result.code, result.out) == (0, "")
    assert "120 lines" in result.err
    assert output.read_text().split("\n") == [*translated(LINES, num_beams=2), ""]
    assert names(output.parent) == ["in.txt", "out.txt"]


def test_a_file_goes_to_standard_output(decode: Run, source: Path) -> None:
    assert decode("--input", source).out.splitlines() == translated(LINES)


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
def test_lines_however_they_end(data: bytes, texts: list[str], decode: Run, source: Path, output: Path) -> None:
    source.write_bytes(data)
    assert decode("--input", source, "--output", output, "--quiet").err == ""
    assert output.read_text() == "".join(f"{text}\n" for text in translated(texts))


def test_json_lines(decode: Run, source: Path, output: Path) -> None:
    assert decode("--input", source, "--output", output, "--json").code == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["text"] for row in rows] == LINES
    assert [row["output"] for row in rows] == translated(LINES)


@pytest.mark.parametrize(
    "bad", [b"a\xff\n", b"a" * 41 + b"\n", b"a" * (1 << 20) + b"bb\n"], ids=["bytes", "long", "MB"]
)
def test_a_line_that_cannot_be_decoded_is_named_and_can_be_mended(
    bad: bytes, decode: Run, source: Path, output: Path
) -> None:
    good = source.read_bytes().splitlines(keepends=True)
    source.write_bytes(b"".join([*good[:50], bad, *good[51:]]))
    result = decode("--input", source, "--output", output, "--batch-size", 2)
    assert_refused(result, f"line 51 of {source}")
    assert names(output.parent) == ["in.txt", "out.txt.part", "out.txt.part.json"]
    assert (output.parent / "out.txt.part").read_text().split("\n") == [*translated(LINES[:50]), ""]

    source.write_bytes(b"".join(good))
    result = decode("--input", source, "--output", output, "--batch-size", 2)
    assert result.code == 0
    assert "the first 50 lines" in result.err
    assert "70 of them" in result.err
    assert output.read_text().split("\n") == [*translated(LINES), ""]
