"""``mytx-export inspect``: what it says about a bundle, a checkpoint, a saved model and other files."""

from __future__ import annotations

import json
import os

import torch

from bundles import copy_of_bundle, tiny_bundle, tiny_model
from cli_support import assert_refused
from mytx.models import save_model


def test_inspect_describes_a_bundle(run):
    code, out, err = run("inspect", tiny_bundle())
    assert (code, err) == (0, "")
    for expected in ("src_key_padding_mask", "bool [batch, source]", "True = padding", "parity", "mytx-export verify"):
        assert expected in out


def test_inspect_says_that_a_bundle_is_damaged(run, tmp_path):
    bundle = copy_of_bundle(tmp_path)
    (bundle / "full.onnx").unlink()
    code, out, _ = run("inspect", bundle)
    assert code == 0
    assert "full.onnx is missing" in out
    _, out, _ = run("inspect", bundle, "--json")
    assert json.loads(out)["details"]["intact"] is False


def test_inspect_describes_a_checkpoint_and_the_command_to_run_next(run, tmp_path):
    torch.save({"state_dict": tiny_model().state_dict(), "epoch": 3}, tmp_path / "my model.pt")
    code, out, _ = run("inspect", tmp_path / "my model.pt")
    assert code == 0
    for expected in ("translation", "d_model: 16", "num_decoder_layers: 2", "--nhead", "layer_norm_eps"):
        assert expected in out
    assert f"mytx-export onnx '{tmp_path / 'my model.pt'}' --nhead N -o bundle" in out


def test_inspect_names_tensors_without_a_place(run, tmp_path):
    torch.save({**tiny_model().state_dict(), "stray": torch.zeros(3)}, tmp_path / "model.pt")
    _, out, _ = run("inspect", tmp_path / "model.pt")
    assert "--key ignore=stray" in out
    _, out, _ = run("inspect", tmp_path / "model.pt", "--json", "--key", "ignore=stray")
    details = json.loads(out)["details"]
    assert details["unknown_tensors"] == []
    assert details["layout"] == "current"
    assert details["sizes"]["src_vocab_size"] == 12


def test_inspect_describes_a_saved_model(run, tmp_path):
    save_model(tiny_model(), tmp_path / "saved")
    code, out, _ = run("inspect", tmp_path / "saved")
    assert code == 0
    assert "save_model" in out
    assert "nhead: 2" in out


def test_inspect_says_when_a_file_is_no_checkpoint(run, tmp_path):
    (tmp_path / "model.pt").write_bytes(b"not a checkpoint")
    assert_refused(run("inspect", tmp_path / "model.pt"))


def test_a_pipe_is_not_waited_for(run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert_refused(run("inspect", tmp_path / "pipe"))
