"""``mytx-export run`` with what does not fit: one or two lines say so, and no file is lost."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from bundles import decoding_bundle, tiny_bundle
from cli_support import COMMAND, Run, assert_refused, names, run_here
from decoded_lines import LINES, translated


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
    arguments: list[str], message: str, decode: Run, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source.parent)
    assert_refused(decode(*arguments), message)
    assert names(source.parent) == ["in.txt"]


def test_standard_output_may_be_closed() -> None:
    command = f"{shlex.join([COMMAND, 'run', str(decoding_bundle()), 'abc'])} >&-"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_without_the_graph_for_beams(capfd: pytest.CaptureFixture[str]) -> None:
    assert_refused(run_here(capfd, "run", tiny_bundle(), "abc", "--num-beams", "2"), "--component generate")


def test_nothing_is_written_into_a_bundle(decode: Run, source: Path) -> None:
    assert_refused(decode("--input", source, "--output", decoding_bundle() / "out.txt"), "is a bundle")


def test_a_finished_file_is_replaced_only_by_force(decode: Run, source: Path, output: Path) -> None:
    output.write_text("mine")
    assert_refused(decode("--input", source, "--output", output), "exists", "--force")
    assert output.read_text() == "mine"
    assert decode("--input", source, "--output", output, "--force").code == 0
    assert output.read_text().split("\n") == [*translated(LINES), ""]


def test_an_output_that_may_not_be_written(
    decode: Run, source: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def refusing(path: Path, mode: str = "r", **options: object) -> object:
        if path.name == "out.txt.part":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, mode, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refusing)
    assert_refused(decode("--input", source, "--output", output), "cannot write", "Permission denied")
