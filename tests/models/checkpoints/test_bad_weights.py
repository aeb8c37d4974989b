"""Weights that are NaN, infinite or not floats are named in the description of a checkpoint; good weights are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoint_support import Save
from layout_writers import State, anonymous, classification, couplet, legacy, packed, transformer, translation, tutorial
from mytx.models import CheckpointError, describe_checkpoint, load_checkpoint, load_model, save_model

MAKERS = {"translation": translation, "couplet": couplet, "classification": classification, "transformer": transformer}


def changed(state: State, name: str, *values: float) -> State:
    """``state`` with the first values of a tensor replaced."""
    tensor = state[name].clone()
    tensor.view(-1)[: len(values)] = torch.tensor(values).to(tensor.dtype)
    return {**state, name: tensor}


def counts(path: Path, **options: Any) -> dict[str, tuple[int, int, int, int]]:
    """How many values of each bad weight there are, and how many are NaN, infinite and too large."""
    found = describe_checkpoint(path, **options).bad_weights
    return {item["tensor"]: (item["values"], item["nan"], item["infinite"], item["too_large"]) for item in found}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_in_every_tensor_of_a_model_nan_is_found_and_refused(make: Callable[[], Any], save: Save) -> None:
    state = dict(make().state_dict())
    assert counts(save(state)) == {}
    for name, tensor in state.items():
        path = save(changed(state, name, float("nan")))
        assert counts(path) == {name: (tensor.numel(), 1, 0, 0)}
        with pytest.raises(CheckpointError, match=rf"NaN or infinite values in 1 tensor: {name} \(1 value\)"):
            load_checkpoint(path, 4)


@pytest.mark.parametrize("layout", [packed, legacy, tutorial, anonymous], ids=lambda layout: layout.__name__)
def test_every_layout_names_the_tensor_as_the_file_does(layout: Callable[[State], State], save: Save) -> None:
    state = layout(dict(translation().state_dict()))
    for name, tensor in state.items():
        path = save(changed(state, name, float("inf"), float("nan"), -float("inf")))
        assert counts(path) == {name: (tensor.numel(), 1, 2, 0)}


def test_a_packed_tensor_counts_all_of_its_values_and_a_shared_one_once(save: Save) -> None:
    state = packed(dict(couplet().state_dict()))
    block = "my_transformer.encoder.layers.0.self_attn.in_proj_weight"
    path = save({**state, block: torch.full_like(state[block], float("nan"))})
    assert counts(path) == {block: (3 * 16 * 16, 3 * 16 * 16, 0, 0)}
    with pytest.raises(CheckpointError, match=rf"{block} \(768 values\)"):
        load_checkpoint(path, 4)
    del state["classification.weight"], state["classification.bias"]
    embedding = "token_embedding.embedding.weight"
    found = counts(save(changed(state, embedding, float("nan"))), keys=[f"output_projection={embedding}"])
    assert found == {embedding: (12 * 16, 1, 0, 0)}


@pytest.mark.parametrize(
    ("dtype", "values", "expected", "reason"),
    [
        (torch.float16, (float("nan"), float("inf")), (1, 1, 0), "1 NaN, 1 infinite of 16 values"),
        (torch.bfloat16, (float("nan"),), (1, 0, 0), "1 NaN of 16 values"),
        (torch.float8_e5m2, (float("inf"), float("inf")), (0, 2, 0), "2 infinite of 16 values"),
        (torch.float64, (float("inf"), float("nan")), (1, 1, 0), "1 NaN, 1 infinite of 16 values"),
        (torch.float64, (), (0, 0, 0), ""),
        (torch.float16, (), (0, 0, 0), ""),
    ],
)
def test_floats_of_any_size_are_counted(
    dtype: torch.dtype, values: tuple[float, ...], expected: tuple[int, int, int], reason: str, save: Save
) -> None:
    name = "my_transformer.encoder.norm.bias"
    state = dict(couplet().state_dict())
    path = save(changed({**state, name: state[name].to(dtype)}, name, *values))
    found = describe_checkpoint(path).bad_weights
    assert [(item["nan"], item["infinite"], item["too_large"]) for item in found] == [expected] * bool(reason)
    assert [item["reason"] for item in found] == [reason] * bool(reason)
    if reason:
        with pytest.raises(CheckpointError, match="NaN or infinite"):
            load_checkpoint(path, 4)
    else:
        load_checkpoint(path, 4)


def test_values_that_float32_cannot_hold_are_told_from_infinite_ones(save: Save) -> None:
    name = "my_transformer.encoder.norm.bias"
    values = torch.tensor([1e300, -1e300, float("inf"), float("nan")] + [1.0] * 12, dtype=torch.float64)
    (bad,) = describe_checkpoint(save({**couplet().state_dict(), name: values})).bad_weights
    assert (bad["nan"], bad["infinite"], bad["too_large"]) == (1, 1, 2)
    assert bad["reason"] == "1 NaN, 1 infinite, 2 too large for float32 of 16 values"
    assert (bad["shape"], bad["dtype"]) == ((16,), "float64")
    assert "earlier checkpoint" in bad["hint"]


KINDS = {
    "int64": torch.ones(16, dtype=torch.int64),
    "int8": torch.ones(16, dtype=torch.int8),
    "bool": torch.ones(16, dtype=torch.bool),
    "complex64": torch.ones(16, dtype=torch.complex64),
    "sparse_coo": torch.ones(16).to_sparse(),
    "meta": torch.ones(16, device="meta"),
}


@pytest.mark.parametrize("kind", [*KINDS, "qint8"])
@pytest.mark.filterwarnings("ignore")
def test_a_weight_that_cannot_be_trained_is_named_with_its_kind(kind: str, save: Save) -> None:
    name = "my_transformer.decoder.layers.0.norm1.bias"
    tensor = KINDS[kind] if kind in KINDS else torch.quantize_per_tensor(torch.ones(16), 0.1, 0, torch.qint8)
    path = save({**couplet().state_dict(), name: tensor})
    (bad,) = describe_checkpoint(path).bad_weights
    assert (bad["tensor"], bad["values"], bad["nan"], bad["infinite"], bad["too_large"]) == (name, 16, 0, 0, 0)
    assert bad["reason"].startswith(f"16 values that are not plain floats: {kind}")
    assert "before quantisation" in bad["hint"]
    with pytest.raises(CheckpointError, match=f"plain floats: 1 tensor: {name}"):
        load_checkpoint(path, 4)


def test_a_quantised_checkpoint_with_unknown_names_is_named_too(save: Save) -> None:
    state = {
        name: (tensor * 100).to(torch.int8) if name.endswith("weight") else tensor
        for name, tensor in anonymous(dict(translation().state_dict())).items()
    }
    path = save(state)
    assert list(counts(path)) == [name for name in state if name.endswith("weight")]
    with pytest.raises(CheckpointError, match="weights must be plain floats"):
        load_checkpoint(path, 4)


def test_a_tensor_that_is_left_and_is_called_a_weight_is_one(save: Save) -> None:
    state = {**couplet().state_dict(), "adapter.weight": torch.ones(3, dtype=torch.int8), "step": torch.tensor(7)}
    assert counts(save(state)) == {"adapter.weight": (3, 0, 0, 0)}
    assert counts(save(state), keys=["ignore=adapter.weight"]) == {}


def test_buffers_that_are_no_weights_do_not_alarm(save: Save) -> None:
    extra = {
        "bn.num_batches_tracked": torch.tensor(3),
        "embeddings.position_ids": torch.arange(16).unsqueeze(0),
        "pos.position_ids": torch.arange(20).view(1, 20, 1).expand(1, 20, 16).clone(),
        "tgt_mask": torch.full((8, 8), -float("inf")).triu(1),
        "attn.bias": torch.ones(1, 1, 8, 8, dtype=torch.bool),
        "causal": torch.ones(16, 16, dtype=torch.bool),
        "version": torch.tensor([2]),
    }
    for make in MAKERS.values():
        state = dict(make().state_dict())
        layer = next(name for name in state if "encoder.layers.0." in name).partition("self_attn")[0]
        more = {**extra, f"{layer}norm1.num_batches_tracked": torch.tensor(3)}
        found = describe_checkpoint(save({**state, **more}))
        assert found.bad_weights == []
        assert set(found.unknown_tensors) == set(more)


def test_a_saved_folder_says_how_many_values_are_not_finite(tmp_path: Path) -> None:
    save_model(couplet(), tmp_path)
    path = tmp_path / "model.safetensors"
    save_file(changed(load_file(path), "classification.bias", float("nan"), float("inf")), path)
    with pytest.raises(CheckpointError, match=r"1 tensor: classification\.bias \(2 values\)") as caught:
        load_model(tmp_path)
    assert caught.value.hint
