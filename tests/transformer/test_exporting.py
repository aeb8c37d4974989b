"""torch.export takes the unchanged model, with free lengths and batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from mytx.transformer import MyTransformer, causal_mask, generate_square_subsequent_mask

HEADS = 2
TRACED = (7, 5, 3)  # S, T, N: all different, none 0 or 1
SIZES = [(s, t, n) for n in (1, 2, 5) for s in (1, 3, 31) for t in (1, 3, 31) if s != t] + [TRACED, (6, 6, 4)]


def paddings(source: int, target: int, batch: int) -> dict[str, Tensor]:
    """All but one token of a sentence, the last of another, all of a third. No two are one tensor: an export takes
    such inputs for one.
    """
    src, tgt = torch.zeros(batch, source, dtype=torch.bool), torch.zeros(batch, target, dtype=torch.bool)
    src[0, 1:] = tgt[-1, -1:] = True
    if batch > 2:
        src[1] = True
    return {"src_key_padding_mask": src, "tgt_key_padding_mask": tgt, "memory_key_padding_mask": src.clone()}


def no_masks(source: int, target: int, batch: int) -> dict[str, Tensor]:
    return {}


def usual_masks(source: int, target: int, batch: int) -> dict[str, Tensor]:
    return {"tgt_mask": generate_square_subsequent_mask(target), **paddings(source, target, batch)}


def bool_masks(source: int, target: int, batch: int) -> dict[str, Tensor]:
    forbidden = torch.rand(target, source) < 0.4
    return {"tgt_mask": causal_mask(target), "memory_mask": forbidden, **paddings(source, target, batch)}


def masks_for_each_head(source: int, target: int, batch: int) -> dict[str, Tensor]:
    rows = batch * HEADS
    return {
        "src_mask": torch.randn(rows, source, source),
        "tgt_mask": causal_mask(target).repeat(rows, 1, 1),
        "memory_mask": torch.randn(rows, target, source),
        **paddings(source, target, batch),
    }


def exported(model: MyTransformer, masks: Callable[..., dict[str, Tensor]], named: bool = True) -> ExportedProgram:
    """Named dimensions say how masks for each head depend on the batch; torch's own inference refuses N = 1 for them,
    because it takes every dimension for 2 at least, and 2 heads times that for 4.
    """
    source, target, batch = TRACED
    inputs = {"src": torch.randn(source, batch, 8), "tgt": torch.randn(target, batch, 8), **masks(*TRACED)}
    names = {length: Dim(name, min=1) for length, name in zip(TRACED, ("source", "target", "batch"), strict=True)}
    names |= {batch * HEADS: HEADS * names[batch]}
    free = {
        name: {axis: names[size] if named else Dim.DYNAMIC for axis, size in enumerate(tensor.shape) if size != 8}
        for name, tensor in inputs.items()
    }
    return torch.export.export(model, (), inputs, dynamic_shapes=free)


@pytest.mark.parametrize(
    ("masks", "named", "changes"),
    [
        (no_masks, False, {}),
        (usual_masks, False, {}),
        (usual_masks, False, {"norm_first": True, "activation": "gelu"}),
        (usual_masks, True, {}),
        (bool_masks, False, {}),
        (masks_for_each_head, True, {}),
    ],
)
def test_an_export_at_one_size_equals_eager_at_every_other(
    masks: Callable[..., dict[str, Tensor]], named: bool, changes: dict[str, Any], make_model: Any, assert_close: Any
) -> None:
    model = make_model(torch.float32, num_encoder_layers=1, num_decoder_layers=1, **changes)
    run = exported(model, masks, named).module()
    for source, target, batch in SIZES:
        inputs = {"src": torch.randn(source, batch, 8), "tgt": torch.randn(target, batch, 8)}
        inputs |= masks(source, target, batch)
        with torch.no_grad():
            assert_close(run(**inputs), model(**inputs), 1e-6)


def test_an_export_keeps_every_input_and_each_one_matters(make_model: Any) -> None:
    model = make_model(torch.float32, num_encoder_layers=1, num_decoder_layers=1)
    program = exported(model, masks_for_each_head)
    source, target, batch = 4, 6, 2
    inputs = {"src": torch.randn(source, batch, 8), "tgt": torch.randn(target, batch, 8)}
    inputs |= masks_for_each_head(source, target, batch)
    assert set(program.graph_signature.user_inputs) == set(inputs)
    run = program.module()
    with torch.no_grad():
        before = run(**inputs)
        for name, tensor in inputs.items():
            moved = tensor.roll(1, -1) if tensor.dtype == torch.bool else tensor + torch.randn_like(tensor)
            assert not torch.allclose(run(**{**inputs, name: moved}), before), name


def test_an_export_changes_nothing_in_place(make_model: Any) -> None:
    model = make_model(torch.float32, num_encoder_layers=1, num_decoder_layers=1)
    calls = [str(node.target) for node in exported(model, usual_masks).graph.nodes if node.op == "call_function"]
    assert "aten.linear.default" in calls
    # An operator that writes to its input ends in an underscore: aten.add_.Tensor.
    assert [call for call in calls if call.split(".")[1].endswith("_")] == []
