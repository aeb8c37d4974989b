"""Checkpoints whose tensors or head count do not fit a model: one clear message each with the next step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint_support import changed, refused
from layout_writers import State, classification, couplet, packed, transformer, translation
from mytx.models import load_checkpoint, save_model


@pytest.mark.parametrize("value", [{}, [], 3, {"a": 1}, [torch.ones(3)], torch.ones(3), {"model": {"epoch": 3}}])
def test_no_tensors_inside(value: Any, tmp_path: Path) -> None:
    torch.save(value, tmp_path / "model.pt")
    refused(tmp_path / "model.pt", "no named tensors")


@pytest.mark.parametrize("state", [{"weight": torch.ones(3, 2)}, {"encoder.weight": torch.ones(3), "b": torch.ones(2)}])
def test_no_transformer_inside(state: State, tmp_path: Path) -> None:
    torch.save(state, tmp_path / "model.pt")
    refused(tmp_path / "model.pt", "no transformer layers")


BLOCK = "my_transformer.encoder.layers.0."


def test_a_missing_head_count_names_what_fits(tmp_path: Path) -> None:
    path = changed(lambda: couplet(d_model=64), lambda state: None, tmp_path / "model.pt")
    error = refused(path, r"heads is not in a checkpoint \(for d_model 64 it may be 1, 2, 4, 8 or 16\)", nhead=None)
    assert error.hint == "pass --nhead N"
    path = changed(couplet, lambda state: None, tmp_path / "model.pt")
    assert refused(path, r"for d_model 16 it may be 1, 2 or 4\)", nhead=None).hint == "pass --nhead N"


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
