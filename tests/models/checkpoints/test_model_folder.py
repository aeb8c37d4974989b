"""``save_model`` and ``load_model`` keep every bit; an incomplete folder gives a clear error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from layout_writers import classification, couplet, outputs, transformer, translation
from mytx.models import Assumption, CheckpointError, build_model, config_of, load_model, save_model

ALL_MODELS = [translation, couplet, classification, transformer]


@pytest.mark.parametrize("make", ALL_MODELS)
@pytest.mark.parametrize(
    "options", [{}, {"activation": "silu", "norm_first": True, "bias": False, "final_norm": False}]
)
def test_a_model_comes_back_bit_for_bit(make: Any, options: dict[str, Any], tmp_path: Path) -> None:
    model = make(**options)
    save_model(model, tmp_path / "new" / "folder")
    again = load_model(tmp_path / "new" / "folder")
    assert config_of(again) == config_of(model)
    assert not again.training
    assert model.state_dict().keys() == again.state_dict().keys()
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in again.state_dict().items())
    assert torch.equal(outputs(again), outputs(model))
    assert all(parameter.requires_grad for parameter in again.parameters())


@pytest.mark.parametrize("make", ALL_MODELS)
def test_assumptions_are_kept(make: Any, tmp_path: Path) -> None:
    config = config_of(make()).with_assumed((Assumption("activation", "relu"), Assumption("pad_id", 0, "option")))
    save_model(build_model(config), tmp_path)
    assert config_of(load_model(tmp_path)) == config


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_stored_in_another_dtype_come_back_in_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    model = couplet()
    save_model(model, tmp_path, dtype=dtype)
    again = load_model(tmp_path)
    for name, tensor in again.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, model.state_dict()[name].to(dtype).float())
    stored = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {dtype}


def test_shared_weights_are_saved(tmp_path: Path) -> None:
    model = couplet()
    model.classification.weight = model.token_embedding.embedding.weight
    save_model(model, tmp_path)
    assert torch.equal(outputs(load_model(tmp_path)), outputs(model))


def test_a_loaded_model_does_not_depend_on_the_file(tmp_path: Path) -> None:
    model = couplet()
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert torch.equal(outputs(again), outputs(model))


def test_weights_that_do_not_fit_the_dtype_are_not_written(tmp_path: Path) -> None:
    model = couplet()
    with torch.no_grad():
        model.classification.bias[0] = 1e6
    with pytest.raises(ValueError, match=r"classification\.bias .* torch\.float16"):
        save_model(model, tmp_path, dtype=torch.float16)
    assert not list(tmp_path.iterdir())


def change_config(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        values = json.loads((folder / "config.json").read_text())
        change(values)
        (folder / "config.json").write_text(json.dumps(values))

    return damage


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "config of something else": (lambda folder: (folder / "config.json").write_text("{}"), "not a model configuration"),
    "config not JSON": (lambda folder: (folder / "config.json").write_text("{"), "not a model configuration"),
    "config not text": (lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe\xff"), "not a model config"),
    "config a folder": (
        lambda folder: ((folder / "config.json").unlink(), (folder / "config.json").mkdir()),
        "not a model configuration",
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no model.safetensors"),
    "empty weights": (lambda folder: (folder / "model.safetensors").write_bytes(b""), "not a readable safetensors"),
    "weights cut short": (
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-9]),
        "not a readable safetensors",
    ),
    "weights of another size": (change_config(lambda v: v["transformer"].update(dim_feedforward=8)), r"linear1.*24.*8"),
    "a layer too few": (change_config(lambda v: v["transformer"].update(num_encoder_layers=1)), "unexpected tensor"),
    "a layer too many": (change_config(lambda v: v["transformer"].update(num_encoder_layers=3)), "lacks 16 tensors"),
    "another kind": (change_config(lambda v: v.update(kind="transformer")), "unexpected"),
    "an unknown kind": (change_config(lambda v: v.update(kind="gpt")), "kind must be one of"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_one_clear_error(damage: str, tmp_path: Path) -> None:
    save_model(couplet(), tmp_path)
    act, message = DAMAGES[damage]
    act(tmp_path)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(tmp_path)
    assert "\n" not in caught.value.message


def test_no_folder_at_all(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load_model(tmp_path / "absent")
