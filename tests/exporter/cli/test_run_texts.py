"""``mytx-export run`` on texts and on lines of standard input: the ids of PyTorch, or a message."""

from __future__ import annotations

import io
import json
import sys

import pytest
import torch

from bundles import copy_of_bundle, edit_manifest, relist, tiny_bundle, tiny_model
from cli_support import assert_refused
from mytx.exporter import OptionError, open_bundle


def greedy_in_pytorch(source: list[int], length: int) -> list[int]:
    model = tiny_model().eval()
    target = [1]
    for _ in range(length):
        with torch.no_grad():
            best = int(model(torch.tensor([source]), torch.tensor([target]))[0, -1].argmax())
        if best == 2:
            break
        target.append(best)
    return target[1:]


@pytest.mark.parametrize("source", [[4], [5, 6, 7], [4, 4, 9, 11, 3], list(range(4, 12)) * 5])
def test_decoding_gives_the_tokens_of_pytorch(source):
    assert open_bundle(tiny_bundle()).greedy(source, max_length=12) == greedy_in_pytorch(source, 12)


def test_run_decodes_each_text(run):
    bundle = open_bundle(tiny_bundle())
    code, out, err = run("run", tiny_bundle(), "abc", "hg", "--max-length", 5)
    assert (code, err) == (0, "")
    assert out.splitlines() == [bundle.translate("abc", 5), bundle.translate("hg", 5)]
    assert out.strip()


def test_run_reads_lines_from_standard_input(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("abc\nhg\n"))
    code, out, _ = run("run", tiny_bundle(), "--json", "--max-length", 5)
    assert code == 0
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["abc", "hg"]


def test_unknown_characters_become_the_unknown_token():
    bundle = open_bundle(tiny_bundle())
    assert bundle.translate("aй", 5) == bundle.vocabulary.decode_target(bundle.greedy([4, 3], 5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["", "--max-length", 5], "empty"),
        (["abc", "--max-length", 41], "40 positions"),
        (["abc", "--max-length", 0], "max-length"),
        (["a" * 41], "41 tokens"),
        (["abc", "--pad-to", 2], "--pad-to"),
    ],
)
def test_run_says_what_does_not_fit(arguments, message, run):
    code, _, err = run("run", tiny_bundle(), *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_characters_without_an_unknown_token_are_named(run, tmp_path):
    bundle = copy_of_bundle(tmp_path)
    vocab = json.loads((bundle / "vocab.json").read_text())
    del vocab["source"]["<unk>"]
    (bundle / "vocab.json").write_text(json.dumps(vocab))
    relist(bundle)
    assert_refused(run("run", bundle, "aйb"), "й")


def test_a_bundle_without_a_vocabulary_says_how_to_get_one(run, tmp_path):
    bundle = copy_of_bundle(tmp_path)
    (bundle / "vocab.json").unlink()
    relist(bundle)
    assert_refused(run("run", bundle, "abc"), "--vocab")
    assert open_bundle(bundle).greedy([4], 3) == open_bundle(tiny_bundle()).greedy([4], 3)


def test_a_bundle_without_the_decoder_says_so(run, tmp_path):
    bundle = copy_of_bundle(tmp_path)
    manifest = json.loads((bundle / "manifest.json").read_text())
    del manifest["graphs"]["decoder.onnx"]
    (bundle / "decoder.onnx").unlink()
    files = [entry for entry in manifest["files"] if entry["path"] != "decoder.onnx"]
    edit_manifest(bundle, graphs=manifest["graphs"], files=files)
    assert_refused(run("run", bundle, "abc"), "no greedy graph", "--component greedy")


def test_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(OptionError, match="id 12 is outside the vocabulary of 12"):
        open_bundle(tiny_bundle()).greedy([4, 12])


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_lines_may_end_as_they_do_on_any_system(end, monkeypatch, run):
    data = f"\ufeffabc{end}".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))
    code, out, _ = run("run", tiny_bundle(), "--json", "--max-length", 5)
    assert code == 0
    found = json.loads(out)
    assert (found["text"], found["output"]) == ("abc", open_bundle(tiny_bundle()).translate("abc", 5))


def test_a_blank_line_stays_a_blank_line(monkeypatch, run):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\n\nhg\n")))
    code, out, _ = run("run", tiny_bundle(), "--max-length", 5)
    assert code == 0
    assert out.split("\n")[1] == ""
    assert len(out.splitlines()) == 3


def test_a_line_that_is_not_utf8_is_named(monkeypatch, run):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\na\xff\n")))
    result = run("run", tiny_bundle(), "--max-length", 5)
    assert len(result.out.splitlines()) == 1
    assert_refused(result._replace(out=""), "line 2")


def test_closed_standard_input_is_said(monkeypatch, run):
    monkeypatch.setattr(sys, "stdin", None)
    assert_refused(run("run", tiny_bundle()))


def test_without_a_length_decoding_goes_as_far_as_the_positions():
    bundle = open_bundle(tiny_bundle())
    assert bundle.greedy([11, 10]) == bundle.greedy([11, 10], max_length=40)
    assert bundle.translate("hg") == bundle.vocabulary.decode_target(bundle.greedy([11, 10]))
