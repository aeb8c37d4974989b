"""Where the state dict may be in a file, which files and dtypes load, and what is assumed and recorded."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from checkpoint_support import assert_same, saved
from layout_writers import SIZES, anonymous, classification, couplet, outputs, transformer, translation
from mytx.models import Assumption, CheckpointError, ClassificationModel, config_of, load_checkpoint


@pytest.mark.parametrize(
    "container",
    [
        lambda state: {"model": state},
        lambda state: {"state_dict": state, "epoch": 3, "lr": 1e-4, "best": torch.tensor(0.25)},
        lambda state: {"model_state_dict": state, "optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}}},
        lambda state: {"net": {"state_dict": state}},
        lambda state: {"module": {f"module.{name}": tensor for name, tensor in state.items()}},
        lambda state: {"something_else": state},
        lambda state: {f"module.{name}": tensor for name, tensor in state.items()},
        lambda state: {f"_orig_mod.module.{name}": tensor for name, tensor in state.items()},
        lambda state: {name.replace("encoder.layers", "_orig_mod.encoder.layers"): t for name, t in state.items()},
        lambda state: {name: nn.Parameter(tensor) for name, tensor in state.items()},
    ],
)
def test_where_a_state_dict_may_be(container: Any, tmp_path: Path) -> None:
    model = couplet()
    assert_same(load_checkpoint(saved(container(model.state_dict()), tmp_path / "model.pt"), 4), model)


def test_of_several_state_dicts_the_preferred_one_is_taken_and_that_is_recorded(tmp_path: Path) -> None:
    model, other = couplet(), couplet(activation="gelu", bias=False)
    path = saved({"ema": other.state_dict(), "model": model.state_dict()}, tmp_path / "model.pt")
    loaded = load_checkpoint(path, 4)
    assert_same(loaded, model)
    assert Assumption("state dict", "model", "preferred to ema") in config_of(loaded).assumed


def test_weights_saved_beside_the_transformer_are_not_taken_and_that_is_recorded(tmp_path: Path) -> None:
    model = transformer()
    content = {"embed": {"weight": torch.ones(9, 16)}, "transformer": model.state_dict(), "loss": torch.tensor(0.5)}
    loaded = load_checkpoint(saved(content, tmp_path / "model.pt"), 4)
    assert_same(loaded, model)
    assert Assumption("state dict", "transformer", "preferred to embed") in config_of(loaded).assumed


def test_of_two_equal_state_dicts_none_is_taken(tmp_path: Path) -> None:
    path = saved({"teacher": couplet().state_dict(), "student": couplet().state_dict()}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="2 models: teacher, student") as caught:
        load_checkpoint(path, 4)
    assert 'torch.save(checkpoint["teacher"]' in caught.value.hint


def test_the_old_file_format_and_compressed_archives_load(tmp_path: Path) -> None:
    model = couplet()
    torch.save(model.state_dict(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert_same(load_checkpoint(tmp_path / "old.pt", 4), model)
    torch.save(model.state_dict(), tmp_path / "new.pt")
    with (
        zipfile.ZipFile(tmp_path / "new.pt") as source,
        zipfile.ZipFile(tmp_path / "small.pt", "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for info in source.infolist():
            target.writestr(info.filename, source.read(info))
    assert_same(load_checkpoint(tmp_path / "small.pt", 4), model)


@pytest.mark.parametrize(
    ("dtype", "how"),
    [(torch.float64, "rounded"), (torch.float16, "widened, exact"), (torch.bfloat16, "widened, exact")],
)
def test_other_float_types_become_float32_and_that_is_recorded(dtype: torch.dtype, how: str, tmp_path: Path) -> None:
    model = couplet()
    state = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    loaded = load_checkpoint(saved(state, tmp_path / "model.pt"), 4)
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, state[name].float())
    assert Assumption("weights", f"{str(dtype)[6:]} -> float32", how) in config_of(loaded).assumed


def test_the_loaded_model_shares_no_memory_with_the_file(tmp_path: Path) -> None:
    model = couplet()
    path = saved(model.state_dict(), tmp_path / "model.pt")
    loaded = load_checkpoint(path, 4)
    with path.open("r+b") as file:
        file.write(b"\0" * path.stat().st_size)
    assert_same(loaded, model)
    pointers = [tensor.data_ptr() for tensor in loaded.state_dict().values()]
    assert len(set(pointers)) == len(pointers)


def test_pooling_is_an_option_of_classification(tmp_path: Path) -> None:
    model = classification(pooling="upstream-avg")
    path = saved(model.state_dict(), tmp_path / "model.pt")
    loaded = load_checkpoint(path, 4, pooling="upstream-avg")
    assert isinstance(loaded, ClassificationModel)
    assert_same(loaded, model)
    assert Assumption("pooling", "upstream-avg", "option") in config_of(loaded).assumed
    assert Assumption("pooling", "sum", "default") in config_of(load_checkpoint(path, 4)).assumed


def test_without_a_position_table_the_sinusoid_is_used_and_that_is_recorded(tmp_path: Path) -> None:
    model = couplet(max_length=5000)
    state = model.state_dict()
    del state["pos_embedding.pe"]
    loaded = load_checkpoint(saved(state, tmp_path / "model.pt"), 4)
    assert_same(loaded, model)
    assert Assumption("positions", "sinusoidal, 5000", "default: the checkpoint has none") in config_of(loaded).assumed


@pytest.mark.parametrize("make", [translation, couplet, transformer])
def test_anonymous_names_load_all_the_same(make: Any, tmp_path: Path) -> None:
    model = make()
    assert_same(load_checkpoint(saved(anonymous(model.state_dict()), tmp_path / "model.pt"), 4), model)


def test_the_head_count_matters_and_is_stored(tmp_path: Path) -> None:
    path = saved(couplet().state_dict(), tmp_path / "model.pt")
    four, two = load_checkpoint(path, 4), load_checkpoint(path, 2)
    assert (config_of(four).transformer.nhead, config_of(two).transformer.nhead) == (4, 2)
    assert not torch.allclose(outputs(four), outputs(two))
    assert SIZES["nhead"] == 4
