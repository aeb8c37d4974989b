"""What can be wrong with a checkpoint: each thing is one clear message with the next step, never a traceback."""

from __future__ import annotations

import argparse
import collections
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from layout_writers import State, classification, couplet, packed, transformer, translation
from safetensors.torch import save_file
from torch import nn

from mytx.models import CheckpointError, load_checkpoint, save_model


def refused(path: Path, message: str, **options: Any) -> CheckpointError:
    """The error for ``path``, which must match ``message``, be short and name a next step."""
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(path, **{"nhead": 4, **options})
    error = caught.value
    assert error.hint
    assert "\n" not in error.message + error.hint
    assert len(error.message) < 400 + len(str(path))
    return error


class Planted:
    """Runs a command where it is unpickled without care."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


def whole(path: Path) -> bytes:
    torch.save(couplet().state_dict(), path)
    return path.read_bytes()


def test_no_such_file(tmp_path: Path) -> None:
    refused(tmp_path / "absent.pt", r"absent\.pt: no such file")


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    assert "save_model" in refused(tmp_path, r"has no config\.json").hint


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_an_empty_file(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    refused(tmp_path / name, "is empty")


@pytest.mark.parametrize("keep", [3, 10, 100, 5000, -200, -1])
def test_a_truncated_archive(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(whole(path)[:keep])
    refused(path, "truncated or damaged|not a PyTorch checkpoint")


@pytest.mark.parametrize("keep", [5, 30, 600, -10])
def test_a_truncated_file_in_the_old_format(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(couplet().state_dict(), path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:keep])
    refused(path, "truncated, damaged|not one of tensors")


@pytest.mark.parametrize("keep", [4, 12, 200, -1])
def test_a_truncated_safetensors_file(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(couplet().state_dict(), path)
    path.write_bytes(path.read_bytes()[:keep])
    refused(path, "not a readable safetensors file, or is truncated")


def test_a_changed_byte_in_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    content = bytearray(whole(path))
    with zipfile.ZipFile(path) as archive:
        record = max(archive.infolist(), key=lambda info: info.file_size)
    content[record.header_offset + 200] ^= 1
    path.write_bytes(content)
    refused(path, "truncated or damaged: Bad CRC-32")


def test_archives_without_checksums_load(tmp_path: Path) -> None:
    computed = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(couplet().state_dict(), tmp_path / "model.pt")
    finally:
        torch.serialization.set_crc32_options(computed)
    load_checkpoint(tmp_path / "model.pt", 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello, this is text", "not a PyTorch checkpoint"),
        (b"<!DOCTYPE html><html>404</html>", "not a PyTorch checkpoint"),
        (b"\x00" * 4000, "not a PyTorch checkpoint"),
        (b"\x80\x02garbage that is no pickle", "truncated, damaged|not one of tensors"),
        (b"\x80\x04\x95" + b"\xff" * 100, "not one of tensors|truncated, damaged"),
        (b"PK\x03\x04" + b"\x00" * 500, "truncated or damaged"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "Git LFS pointer"),
    ],
)
def test_what_is_no_checkpoint(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    refused(tmp_path / "model.pt", message)


def test_an_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    whole(path)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root reads everything")
    refused(path, "cannot be read: Permission denied")


def test_other_archives(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    refused(path, "a zip archive, but not one that torch.save wrote")
    np.savez(tmp_path / "model.npz", a=np.ones(3))
    refused(tmp_path / "model.npz", "a zip archive, but not one that torch.save wrote")


@pytest.mark.filterwarnings("ignore")
def test_a_torchscript_archive(tmp_path: Path) -> None:
    torch.jit.script(nn.Linear(2, 2)).save(str(tmp_path / "model.pt"))
    assert "torch.jit.load" in refused(tmp_path / "model.pt", "TorchScript archive").hint


def plant_in_archive(path: Path, value: Any) -> None:
    torch.save({"model": couplet().state_dict(), "extra": value}, path)


def plant_in_old_file(path: Path, value: Any) -> None:
    torch.save({"model": couplet().state_dict(), "extra": value}, path, _use_new_zipfile_serialization=False)


def plant_in_pickle(path: Path, value: Any) -> None:
    path.write_bytes(pickle.dumps({"extra": value}))


def plant_in_pickle_2(path: Path, value: Any) -> None:
    path.write_bytes(pickle.dumps({"extra": value}, protocol=2))


@pytest.mark.parametrize("plant", [plant_in_archive, plant_in_old_file, plant_in_pickle, plant_in_pickle_2])
def test_a_pickle_that_wants_to_run_code_is_refused_by_name_and_does_not_run(
    plant: Callable[[Path, Any], None], tmp_path: Path
) -> None:
    marker, path = tmp_path / "ran", tmp_path / "model.pt"
    plant(path, Planted(marker))
    error = refused(path, r"refused: its pickle asks to run (posix|nt|os)\.system")
    assert "torch.save(model.state_dict()" in error.hint
    plant(path, argparse.Namespace(lr=1))
    refused(path, r"refused: its pickle asks to run argparse\.Namespace")
    assert not marker.exists()


def test_a_whole_module_is_refused_by_its_class(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "model.pt")
    error = refused(tmp_path / "model.pt", r"asks to run torch\.nn\.modules\.linear\.Linear")
    assert "torch.save(model.state_dict()" in error.hint


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_state_dict_written_by_pickle_itself(protocol: int, tmp_path: Path) -> None:
    state = collections.OrderedDict(a=torch.ones(3))
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(state, protocol=protocol))
    refused(tmp_path / "model.pkl", r"asks to run torch\.storage\._load_from_bytes")


@pytest.mark.parametrize("value", [{}, [], 3, {"a": 1}, [torch.ones(3)], torch.ones(3), {"model": {"epoch": 3}}])
def test_no_tensors_inside(value: Any, tmp_path: Path) -> None:
    torch.save(value, tmp_path / "model.pt")
    refused(tmp_path / "model.pt", "no named tensors")


@pytest.mark.parametrize("state", [{"weight": torch.ones(3, 2)}, {"encoder.weight": torch.ones(3), "b": torch.ones(2)}])
def test_no_transformer_inside(state: State, tmp_path: Path) -> None:
    torch.save(state, tmp_path / "model.pt")
    refused(tmp_path / "model.pt", "no transformer layers")


def changed(make: Callable[[], Any], change: Callable[[State], Any], path: Path) -> Path:
    state = dict(make().state_dict())
    change(state)
    torch.save(state, path)
    return path


BLOCK = "my_transformer.encoder.layers.0."


def test_a_missing_head_count_names_what_fits(tmp_path: Path) -> None:
    path = changed(lambda: couplet(d_model=64), lambda state: None, tmp_path / "model.pt")
    error = refused(path, r"heads is not in a checkpoint \(for d_model 64 it may be 1, 2 or 4\)", nhead=None)
    assert error.hint == "pass --nhead N"
    path = changed(couplet, lambda state: None, tmp_path / "model.pt")
    assert refused(path, r"for d_model 16 it may be 1\)", nhead=None).hint == "pass --nhead N"


@pytest.mark.parametrize("nhead", [3, 0, -4, 17])
def test_a_head_count_that_does_not_divide_names_both(nhead: int, tmp_path: Path) -> None:
    path = changed(couplet, lambda state: None, tmp_path / "model.pt")
    assert "--nhead" in refused(path, rf"{nhead} heads do not divide d_model, which is 16", nhead=nhead).hint


@pytest.mark.parametrize("make", [translation, couplet, classification, transformer])
def test_every_missing_tensor_is_noticed(make: Callable[[], Any], tmp_path: Path) -> None:
    everything = make(num_encoder_layers=1).state_dict()
    for name in everything:
        if name == "pos_embedding.pe":
            continue  # the sinusoid takes its place, and that is recorded
        state = {other: tensor for other, tensor in everything.items() if other != name}
        torch.save(state, tmp_path / "model.pt")
        error = refused(tmp_path / "model.pt", "lacks|missing|no output projection|no embedding|cannot serve")
        assert name in str(error) or name.split(".")[0] in ("classification", "token_embedding"), str(error)


def test_missing_tensors_are_counted_and_the_first_named(tmp_path: Path) -> None:
    def drop(state: State) -> None:
        for name in [name for name in state if name.startswith(BLOCK + "self_attn.")]:
            del state[name]

    error = refused(changed(couplet, drop, tmp_path / "model.pt"), "lacks 8 tensors: my_transformer")
    assert error.message.endswith(", …")
    assert error.message.count(BLOCK) == 5


def test_missing_and_unexpected_tensors_suggest_a_key(tmp_path: Path) -> None:
    def misname(state: State) -> None:
        state["strange"] = state.pop(BLOCK + "norm1.bias")

    error = refused(
        changed(couplet, misname, tmp_path / "model.pt"), r"lacks 1 tensor: .* has 1 unexpected tensor: strange"
    )
    assert error.hint.endswith(f"--key {BLOCK}norm1.bias=strange")


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (BLOCK + "linear1.weight", (8, 16), r"linear1\.bias .* \[24\], .* \[8\]"),
        (BLOCK + "linear2.weight", (16, 8), r"linear2\.weight .*\[16, 8\], .* \[16, 24\]"),
        (BLOCK + "norm1.weight", (8,), r"norm1\.weight .*\[8\], .* \[16\]"),
        ("my_transformer.decoder.layers.0.linear1.weight", (24, 8), r"\[24, 8\], .* \[24, 16\]"),
        (BLOCK + "self_attn.q_proj.weight", (8, 16), r"\[8, 16\], .* \[16, 16\]"),
        (BLOCK + "linear1.weight", (), "no transformer layers"),
        ("classification.weight", (5, 16), r"\[5, 16\]"),
        ("classification.weight", (), r"classification|vocab"),
        ("token_embedding.embedding.weight", (12, 8), r"\[12, 8\], .* \[12, 16\]"),
        ("token_embedding.embedding.weight", (12,), r"\[12\], .* \[12, 16\]"),
        ("pos_embedding.pe", (20, 1, 8), r"\[20, 1, 8\], .* \[20, 1, 16\]"),
        ("pos_embedding.pe", (20, 2, 16), r"\[20, 2, 16\], .* \[20, 1, 16\]"),
        ("my_transformer.encoder.norm.bias", (7,), r"\[7\], .* \[16\]"),
    ],
)
def test_a_wrong_shape_names_both_and_the_key(name: str, shape: tuple[int, ...], message: str, tmp_path: Path) -> None:
    refused(changed(couplet, lambda state: state.update({name: torch.zeros(shape)}), tmp_path / "model.pt"), message)


def test_a_packed_projection_that_does_not_split(tmp_path: Path) -> None:
    state = packed(transformer().state_dict())
    state["encoder.layers.0.self_attn.in_proj_weight"] = torch.ones(47, 16)
    torch.save(state, tmp_path / "model.pt")
    refused(tmp_path / "model.pt", r"in_proj_weight \[47, 16\] does not split")
    state["encoder.layers.0.self_attn.in_proj_weight"] = torch.ones(24, 16)
    torch.save(state, tmp_path / "model.pt")
    refused(tmp_path / "model.pt", r"in_proj_weight gives .*q_proj\.weight .*\[8, 16\], .* \[16, 16\]")


def test_one_attention_block_in_two_layouts_is_unexpected(tmp_path: Path) -> None:
    both = {**packed(transformer().state_dict()), **transformer().state_dict()}
    torch.save(both, tmp_path / "model.pt")
    refused(tmp_path / "model.pt", "unexpected tensors")


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_a_final_norm_in_one_stack_alone(stack: str, tmp_path: Path) -> None:
    def drop(state: State) -> None:
        del state[f"my_transformer.{stack}.norm.weight"], state[f"my_transformer.{stack}.norm.bias"]

    other = "decoder" if stack == "encoder" else "encoder"
    error = refused(
        changed(couplet, drop, tmp_path / "model.pt"), f"the {other} has a final norm and the {stack} has none"
    )
    assert f"--key {stack}.norm.weight=NAME" in error.hint


def test_a_gap_in_the_layers(tmp_path: Path) -> None:
    state = {name.replace("encoder.layers.1.", "encoder.layers.2."): t for name, t in couplet().state_dict().items()}
    torch.save(state, tmp_path / "model.pt")
    refused(tmp_path / "model.pt", r"encoder has layers 0, 2: encoder\.layers\.1 is missing")


def test_an_encoder_or_a_decoder_alone(tmp_path: Path) -> None:
    for stack, message in (
        ("encoder", "an encoder and neither a decoder nor"),
        ("decoder", "a decoder and no encoder"),
    ):
        state = {name: tensor for name, tensor in transformer().state_dict().items() if name.startswith(stack)}
        torch.save(state, tmp_path / "model.pt")
        refused(tmp_path / "model.pt", message)


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (torch.ones(16, dtype=torch.int64), "int64"),
        (torch.ones(16, dtype=torch.bool), "bool"),
        (torch.ones(16, dtype=torch.complex64), "complex64"),
        ("quantised", "qint8"),
        (torch.ones(16).to_sparse(), "sparse"),
        (torch.ones(16, device="meta"), "meta"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_weights_that_are_no_plain_floats(tensor: Any, kind: str, tmp_path: Path) -> None:
    if kind == "qint8":
        tensor = torch.quantize_per_tensor(torch.ones(16), 0.1, 0, torch.qint8)
    path = changed(couplet, lambda state: state.update({BLOCK + "norm1.bias": tensor}), tmp_path / "model.pt")
    refused(path, rf"plain floats: 1 tensor: .*norm1\.bias \({kind}")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", [BLOCK + "linear2.weight", "pos_embedding.pe", "classification.bias"])
def test_values_that_are_not_finite_are_named(name: str, value: float, tmp_path: Path) -> None:
    path = changed(couplet, lambda state: state[name].view(-1)[3].fill_(value), tmp_path / "model.pt")
    refused(path, f"NaN or infinite values in 1 tensor: {name}")


def test_float64_values_beyond_float32_are_named(tmp_path: Path) -> None:
    huge = torch.full((16,), 1e300, dtype=torch.float64)
    path = changed(couplet, lambda state: state.update({BLOCK + "norm1.bias": huge}), tmp_path / "model.pt")
    refused(path, r"NaN or infinite values in 1 tensor: .*norm1\.bias")


def test_two_names_that_become_one(tmp_path: Path) -> None:
    path = changed(
        couplet, lambda state: state.update({f"module.{BLOCK}norm1.bias": torch.ones(16)}), tmp_path / "m.pt"
    )
    refused(path, r"norm1\.bias and module\..*norm1\.bias")


def test_a_saved_folder_decides_and_nothing_may_contradict_it(tmp_path: Path) -> None:
    save_model(couplet(pad_id=3), tmp_path)
    load_checkpoint(tmp_path)
    load_checkpoint(tmp_path, 4, activation="relu", pad_id=3, embedding_scale=4.0, norm_first=False)
    refused(tmp_path, r"config\.json says nhead=4, --nhead says 2", nhead=2)
    refused(tmp_path, r"config\.json says activation=relu, --activation says gelu", activation="gelu")
    refused(tmp_path, r"config\.json says pad_id=3, --pad-id says 0", pad_id=0)
    refused(tmp_path, "--key is for checkpoints", keys=["ignore=x"])
    (tmp_path / "vocab.json").write_text('{"<pad>": 0, "a": 1}')
    refused(tmp_path, r"config\.json says pad_id=3, .*vocab\.json says 0")
    (tmp_path / "vocab.json").write_text('{"<pad>": 3, "a": 1}')
    load_checkpoint(tmp_path)
