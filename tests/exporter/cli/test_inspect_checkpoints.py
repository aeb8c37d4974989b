"""``inspect`` says whether an export would refuse the weights of a checkpoint, and ``onnx`` refuses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bundles import tiny_model
from cli_support import Run
from mytx.exporter.graphs.user_code import load_weights
from mytx.models import CheckpointError

BIAS = "my_transformer.encoder.layers.0.norm1.bias"
SECTION = "Weights that an export refuses"


def nan(state: dict[str, Any]) -> None:
    state[BIAS] = torch.tensor([float("nan")] * 3 + [float("inf")] + [1.0] * 12)


def integers(state: dict[str, Any]) -> None:
    state[BIAS] = torch.ones(16, dtype=torch.int32)


def complex_numbers(state: dict[str, Any]) -> None:
    state[BIAS] = torch.ones(16, dtype=torch.complex64)


def written(folder: Path, change: Callable[[dict[str, Any]], Any] = lambda state: None) -> Path:
    """A checkpoint that ``change`` has changed."""
    state = dict(tiny_model().state_dict())
    change(state)
    torch.save({"model": state}, folder / "model.pt")
    return folder / "model.pt"


@pytest.mark.parametrize(
    ("change", "line", "refusal"),
    [
        (nan, f"{BIAS} [16] float32: 3 NaN, 1 infinite of 16 values", f"NaN or infinite values in 1 tensor: {BIAS} (4"),
        (integers, f"{BIAS} [16] int32: 16 values that are not plain floats: int32", "plain floats: 1 tensor"),
        (complex_numbers, f"{BIAS} [16] complex64: 16 values that are not plain floats: complex64", "plain floats"),
    ],
)
def test_a_bad_weight_is_named_and_counted_in_words_and_in_data(
    change: Callable[[dict[str, Any]], Any], line: str, refusal: str, run: Run, tmp_path: Path
) -> None:
    path = written(tmp_path, change)
    result = run("inspect", path)
    assert (result.code, result.err) == (0, "")
    lines = [text.strip() for text in result.out.splitlines()]
    assert lines[2:4] == [SECTION, line]
    assert "Next" not in lines
    found = run("inspect", path, "--json").json()
    (bad,) = found["details"]["bad_weights"]
    assert (bad["tensor"], bad["shape"], bad["values"]) == (BIAS, [16], 16)
    assert f"{BIAS} [16] {bad['dtype']}: {bad['reason']}" == line
    assert bad["hint"] in lines
    assert found["next"] == ""
    exported = run("onnx", path, "--nhead", 2, "-o", tmp_path / "bundle")
    assert exported.code == 2
    assert refusal in exported.err
    assert BIAS in exported.err
    assert len(exported.err.splitlines()) == 2
    assert not (tmp_path / "bundle").exists()


def test_of_many_bad_weights_the_first_are_shown_and_all_are_in_the_data(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, lambda state: state.update({name: value * float("nan") for name, value in state.items()}))
    lines = run("inspect", path).out.splitlines()
    everything = len(tiny_model().state_dict())
    start = lines.index(SECTION)
    assert sum("NaN of" in line for line in lines) == 10
    assert lines[start + 11].strip() == f"… and {everything - 10} more tensors: --json lists all"
    assert len(run("inspect", path, "--json").json()["details"]["bad_weights"]) == everything


def test_a_good_checkpoint_with_buffers_of_integers_does_not_alarm(run: Run, tmp_path: Path) -> None:
    buffers = {"bn.num_batches_tracked": torch.tensor(3), "position_ids": torch.arange(40).unsqueeze(0)}
    path = written(tmp_path, lambda state: state.update(buffers))
    result = run("inspect", path)
    assert SECTION not in result.out
    assert "Next" in result.out
    found = run("inspect", path, "--json").json()
    assert found["details"]["bad_weights"] == []
    assert found["next"].startswith("mytx-export onnx")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (torch.tensor([float("nan")] + [0.0] * 89), "1 NaN of 90 values"),
        (torch.full((90,), 1e39, dtype=torch.float64), "90 too large for float32 of 90 values"),
        (torch.ones(90, dtype=torch.int8), "90 values that are not plain floats: int8"),
        (torch.ones(90, dtype=torch.complex64), "90 values that are not plain floats: complex64"),
        (torch.ones(90, dtype=torch.bool), "90 values that are not plain floats: bool"),
    ],
)
def test_a_users_own_model_takes_no_bad_weight(values: torch.Tensor, reason: str, tmp_path: Path) -> None:
    module = torch.nn.ModuleDict({"generator": torch.nn.Linear(3, 90)})
    torch.save({**module.state_dict(), "generator.bias": values}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=r"cannot be exported: 1 weight: generator\.bias") as caught:
        load_weights(module, tmp_path / "model.pt", "package:build")
    assert f"({reason})" in caught.value.message
    assert caught.value.hint


def test_buffers_of_a_users_own_model_hold_what_they_like(tmp_path: Path) -> None:
    module = torch.nn.BatchNorm1d(3)
    module.register_buffer("mask", torch.zeros(3, 3))
    state = {**module.state_dict(), "mask": torch.full((3, 3), -float("inf")), "num_batches_tracked": torch.tensor(7)}
    torch.save(state, tmp_path / "model.pt")
    load_weights(module, tmp_path / "model.pt", "package:build")
    assert torch.equal(module.state_dict()["mask"], state["mask"])
    assert int(module.state_dict()["num_batches_tracked"]) == 7


def test_smaller_and_larger_floats_still_load(tmp_path: Path) -> None:
    module = torch.nn.Linear(3, 2)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        state = {name: torch.ones_like(value).to(dtype) for name, value in module.state_dict().items()}
        torch.save(state, tmp_path / "model.pt")
        load_weights(module, tmp_path / "model.pt", "package:build")
        assert torch.equal(module.weight, torch.ones(2, 3))
