"""verify, inspect and run, as a user meets them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from cli_support import HALVES
from onnx import numpy_helper

from bundles import copy_of_bundle, edit_manifest, tiny_bundle, tiny_model
from mytx.exporter import OptionError, export_bundle, open_bundle, verify_bundle
from mytx.exporter.bundle.manifest import describe_files
from mytx.exporter.cli import main as cli
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.parity.stored import read_stored
from mytx.models import MytxError, save_model
from mytx.transformer import MyTransformer


def run(capsys, *arguments) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as caught:
        cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return int(caught.value.code), captured.out, captured.err


def assert_told(code: int, err: str) -> None:
    """Exit code 2, and one or two lines that say what and what next."""
    assert code == 2
    lines = err.strip().splitlines()
    assert len(lines) <= 2
    assert lines[0].startswith("error: ")


def reseal(bundle: Path) -> None:
    """Make the manifest fit the files again, as somebody with bad intentions or a broken tool would."""
    files = [vars(entry) for entry in describe_files(bundle)]
    edit_manifest(bundle, files=files)


# --- verify ----------------------------------------------------------------------------------------------------------


def test_verify_passes_on_a_whole_bundle(capsys):
    code, out, err = run(capsys, "verify", tiny_bundle())
    assert (code, err) == (0, "")
    assert out.startswith("Passed: 3 files agree with PyTorch in ")
    assert out.splitlines()[-1].startswith("All files in ")
    assert out.count("passed") == 3


def test_verify_gives_json(capsys):
    code, out, _ = run(capsys, "verify", tiny_bundle(), "--json", "-q")
    result = json.loads(out)
    assert code == 0
    assert result["passed"] is True
    assert len(result["manifest_sha256"]) == 64
    assert {row["graph"] for row in result["graphs"]} == {"encoder", "decoder", "full"}
    assert all(row["compared"] > 0 and row["cases"] >= 15 for row in result["graphs"])


def test_verify_does_not_import_torch():
    code = (
        "import sys; from mytx.exporter import verify_bundle, open_bundle;"
        f"assert verify_bundle({str(tiny_bundle())!r}).passed;"
        f"open_bundle({str(tiny_bundle())!r}).translate('abc', 3);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def change_weight(model: onnx.ModelProto) -> None:
    tensor = next(t for t in model.graph.initializer if t.name.endswith("layers.0.linear1.weight"))
    values = numpy_helper.to_array(tensor).copy()
    values[0, 0] += 1e-2
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def change_epsilon(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f = 1e-3


@pytest.mark.parametrize("fault", [change_weight, change_epsilon])
@pytest.mark.parametrize("graph", ["encoder", "decoder", "full"])
def test_verify_fails_with_1_when_a_graph_computes_something_else(fault, graph, capsys, tmp_path):
    bundle = copy_of_bundle(tmp_path)
    model = onnx.load(bundle / f"{graph}.onnx")
    fault(model)
    onnx.save(model, bundle / f"{graph}.onnx")
    reseal(bundle)
    code, out, _ = run(capsys, "verify", bundle, "--json")
    rows = json.loads(out)["graphs"]
    assert code == 1
    own = [row for row in rows if row["runtime"] != HALVES]
    assert all(row["passed"] is (row["graph"] != graph) for row in own)
    (halves,) = [row for row in rows if row["runtime"] == HALVES]
    assert halves["passed"] is (graph == "full")  # it is the encoder and the decoder, not the full file


def test_verify_fails_when_no_case_is_stored(tmp_path):
    bundle = copy_of_bundle(tmp_path)
    index = {name: [] for name in ("encoder", "decoder", "full")}
    np.savez(bundle / "reference.npz", index=np.frombuffer(json.dumps(index).encode(), dtype=np.uint8))
    reseal(bundle)
    assert not verify_bundle(bundle).passed


@pytest.mark.parametrize("keep", [[], ["encoder"]])
def test_verify_refuses_a_bundle_whose_cases_lack_a_graph(keep, tmp_path, capsys):
    bundle = copy_of_bundle(tmp_path)
    index = {name: [] for name in keep}
    np.savez(bundle / "reference.npz", index=np.frombuffer(json.dumps(index).encode(), dtype=np.uint8))
    reseal(bundle)
    code, _, err = run(capsys, "verify", bundle)
    assert_told(code, err)
    assert "reference.npz" in err


def test_stored_cases_with_a_pickle_are_refused(tmp_path, capsys):
    bundle = copy_of_bundle(tmp_path)
    np.savez(bundle / "reference.npz", index=np.array([{"a": 1}], dtype=object))
    reseal(bundle)
    code, _, err = run(capsys, "verify", bundle)
    assert_told(code, err)


def test_stored_cases_hold_the_reference_of_pytorch():
    stored = read_stored(tiny_bundle() / "reference.npz")["full"]
    model = tiny_model().double().eval()
    for case, outputs in zip(stored.plan, stored.expected, strict=True):
        with torch.no_grad():
            logits = model(*(torch.from_numpy(case.inputs[name]) for name in case.inputs)).numpy()
        expected = outputs["logits"]
        assert expected.full_shape == logits.shape
        np.testing.assert_allclose(expected.values, logits.ravel()[expected.positions], rtol=1e-12, atol=1e-12)
        assert expected.scale == pytest.approx(np.abs(logits).max(), rel=1e-12)


@pytest.mark.parametrize("command", ["verify", "run", "inspect"])
def test_what_is_not_there_is_said(command, capsys, tmp_path):
    code, _, err = run(capsys, command, tmp_path / "nothing", *(["text"] if command == "run" else []))
    assert_told(code, err)
    assert "nothing" in err


@pytest.mark.parametrize("command", ["verify", "run", "inspect"])
def test_a_folder_that_is_no_bundle_is_said(command, capsys, tmp_path):
    code, _, err = run(capsys, command, tmp_path, *(["text"] if command == "run" else []))
    assert_told(code, err)


def test_an_unverified_bundle_cannot_be_verified_later(capsys, tmp_path):
    bundle = copy_of_bundle(tmp_path)
    (bundle / "reference.npz").unlink()
    reseal(bundle)
    code, _, err = run(capsys, "verify", bundle)
    assert_told(code, err)
    assert "--no-verify" in err


# --- inspect ---------------------------------------------------------------------------------------------------------


def test_inspect_describes_a_bundle(capsys):
    code, out, err = run(capsys, "inspect", tiny_bundle())
    assert (code, err) == (0, "")
    for expected in ("src_key_padding_mask", "bool [batch, source]", "True = padding", "parity", "mytx-export verify"):
        assert expected in out


def test_inspect_says_that_a_bundle_is_damaged(capsys, tmp_path):
    bundle = copy_of_bundle(tmp_path)
    (bundle / "full.onnx").unlink()
    code, out, _ = run(capsys, "inspect", bundle)
    assert code == 0
    assert "full.onnx is missing" in out
    _, out, _ = run(capsys, "inspect", bundle, "--json")
    assert json.loads(out)["details"]["intact"] is False


def test_inspect_describes_a_checkpoint_and_the_command_to_run_next(capsys, tmp_path):
    torch.save({"state_dict": tiny_model().state_dict(), "epoch": 3}, tmp_path / "my model.pt")
    code, out, _ = run(capsys, "inspect", tmp_path / "my model.pt")
    assert code == 0
    for expected in ("translation", "d_model: 16", "num_decoder_layers: 2", "--nhead", "layer_norm_eps"):
        assert expected in out
    assert f"mytx-export onnx '{tmp_path / 'my model.pt'}' --nhead N -o bundle" in out


def test_inspect_names_tensors_without_a_place(capsys, tmp_path):
    torch.save({**tiny_model().state_dict(), "stray": torch.zeros(3)}, tmp_path / "model.pt")
    _, out, _ = run(capsys, "inspect", tmp_path / "model.pt")
    assert "--key ignore=stray" in out
    _, out, _ = run(capsys, "inspect", tmp_path / "model.pt", "--json", "--key", "ignore=stray")
    details = json.loads(out)["details"]
    assert details["unknown_tensors"] == []
    assert details["layout"] == "current"
    assert details["sizes"]["src_vocab_size"] == 12


def test_inspect_describes_a_saved_model(capsys, tmp_path):
    save_model(tiny_model(), tmp_path / "saved")
    code, out, _ = run(capsys, "inspect", tmp_path / "saved")
    assert code == 0
    assert "save_model" in out
    assert "nhead: 2" in out


def test_inspect_says_when_a_file_is_no_checkpoint(capsys, tmp_path):
    (tmp_path / "model.pt").write_bytes(b"not a checkpoint")
    code, _, err = run(capsys, "inspect", tmp_path / "model.pt")
    assert_told(code, err)


# --- run -------------------------------------------------------------------------------------------------------------


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


def test_run_decodes_each_text(capsys):
    bundle = open_bundle(tiny_bundle())
    code, out, err = run(capsys, "run", tiny_bundle(), "abc", "hg", "--max-length", 5)
    assert (code, err) == (0, "")
    assert out.splitlines() == [bundle.translate("abc", 5), bundle.translate("hg", 5)]
    assert out.strip()


def test_run_reads_lines_from_standard_input(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("abc\nhg\n"))
    code, out, _ = run(capsys, "run", tiny_bundle(), "--json", "--max-length", 5)
    assert code == 0
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["abc", "hg"]


def test_unknown_characters_become_the_unknown_token(capsys):
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
def test_run_says_what_does_not_fit(arguments, message, capsys):
    code, _, err = run(capsys, "run", tiny_bundle(), *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_characters_without_an_unknown_token_are_named(capsys, tmp_path):
    bundle = copy_of_bundle(tmp_path)
    vocab = json.loads((bundle / "vocab.json").read_text())
    del vocab["source"]["<unk>"]
    (bundle / "vocab.json").write_text(json.dumps(vocab))
    reseal(bundle)
    code, _, err = run(capsys, "run", bundle, "aйb")
    assert_told(code, err)
    assert "й" in err


def test_a_bundle_without_a_vocabulary_says_how_to_get_one(capsys, tmp_path):
    bundle = copy_of_bundle(tmp_path)
    (bundle / "vocab.json").unlink()
    reseal(bundle)
    code, _, err = run(capsys, "run", bundle, "abc")
    assert_told(code, err)
    assert "--vocab" in err
    assert open_bundle(bundle).greedy([4], 3) == open_bundle(tiny_bundle()).greedy([4], 3)


def test_a_bundle_without_the_decoder_says_so(capsys, tmp_path):
    bundle = copy_of_bundle(tmp_path)
    manifest = json.loads((bundle / "manifest.json").read_text())
    del manifest["graphs"]["decoder.onnx"]
    (bundle / "decoder.onnx").unlink()
    files = [entry for entry in manifest["files"] if entry["path"] != "decoder.onnx"]
    edit_manifest(bundle, graphs=manifest["graphs"], files=files)
    code, _, err = run(capsys, "run", bundle, "abc")
    assert_told(code, err)
    assert "no greedy graph" in err
    assert "--component greedy" in err


def test_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(OptionError, match="id 12 is outside the vocabulary of 12"):
        open_bundle(tiny_bundle()).greedy([4, 12])


def test_every_error_of_the_library_is_one_that_the_command_line_knows():
    with pytest.raises(MytxError):
        open_bundle("nowhere")


@pytest.mark.parametrize("command", ["onnx", "verify", "inspect", "run", "bench"])
def test_the_help_of_each_command_has_an_example(command, capsys):
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"  mytx-export {command} " in out


def test_shell_completion_knows_the_commands():
    environment = {"_MYTX_EXPORT_COMPLETE": "bash_complete", "COMP_WORDS": "mytx-export v", "COMP_CWORD": "1"}
    command = Path(sys.executable).with_name("mytx-export")
    result = subprocess.run([command], env=environment, capture_output=True, text=True, check=False)
    assert "verify" in result.stdout


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_lines_may_end_as_they_do_on_any_system(end, monkeypatch, capsys):
    data = f"\ufeffabc{end}".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))
    code, out, _ = run(capsys, "run", tiny_bundle(), "--json", "--max-length", 5)
    assert code == 0
    found = json.loads(out)
    assert (found["text"], found["output"]) == ("abc", open_bundle(tiny_bundle()).translate("abc", 5))


def test_a_blank_line_stays_a_blank_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\n\nhg\n")))
    code, out, _ = run(capsys, "run", tiny_bundle(), "--max-length", 5)
    assert code == 0
    assert out.split("\n")[1] == ""
    assert len(out.splitlines()) == 3


def test_a_line_that_is_not_utf8_is_named(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\na\xff\n")))
    code, out, err = run(capsys, "run", tiny_bundle(), "--max-length", 5)
    assert_told(code, err)
    assert "line 2" in err
    assert len(out.splitlines()) == 1


def test_closed_standard_input_is_said(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    code, _, err = run(capsys, "run", tiny_bundle())
    assert_told(code, err)


def test_a_bundle_is_not_made_inside_another(capsys, tmp_path):
    bundle = copy_of_bundle(tmp_path)
    code, _, err = run(capsys, "onnx", "-o", bundle / "sub")
    assert_told(code, err)
    assert "is a bundle" in err
    assert verify_bundle(bundle).passed


def test_a_file_of_a_bundle_is_not_the_bundle(capsys):
    code, _, err = run(capsys, "verify", tiny_bundle() / "encoder.onnx")
    assert_told(code, err)
    assert str(tiny_bundle()) in err


def test_a_pipe_is_not_waited_for(capsys, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    code, _, err = run(capsys, "inspect", tmp_path / "pipe")
    assert_told(code, err)


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 2), tiny_model().double(), tiny_model().half()])
def test_the_library_refuses_what_it_cannot_export(model, tmp_path):
    with pytest.raises(OptionError) as caught:
        export_bundle(model, tmp_path / "bundle")
    assert caught.value.hint
    assert not list(tmp_path.iterdir())


def test_a_model_without_decoder_layers_has_an_encoder_to_export():
    assert list(graphs_of(MyTransformer(16, 2, 1, 0, 24))) == ["encoder"]
    assert list(graphs_of(MyTransformer(16, 2, 1, 1, 24))) == ["encoder", "decoder", "full"]


def test_without_a_length_decoding_goes_as_far_as_the_positions():
    bundle = open_bundle(tiny_bundle())
    assert bundle.greedy([11, 10]) == bundle.greedy([11, 10], max_length=40)
    assert bundle.translate("hg") == bundle.vocabulary.decode_target(bundle.greedy([11, 10]))
