"""trace_shapes shows the shapes inside a model, and does not change the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mytx.transformer import MyTransformer, causal_mask, trace_shapes

SRC, TGT = torch.linspace(-1, 1, 5 * 2 * 8).view(5, 2, 8), torch.linspace(-2, 1, 4 * 2 * 8).view(4, 2, 8)


@pytest.fixture
def model(make_model: Any) -> MyTransformer:
    return make_model(torch.float32, num_encoder_layers=1, num_decoder_layers=1)


def hooks_in(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_the_walk_names_every_module_with_its_shapes(model: MyTransformer) -> None:
    lines: list[str] = []
    with trace_shapes(model, write=lines.append):
        model(SRC, TGT, tgt_mask=causal_mask(4))
    text = [line.strip() for line in lines]
    assert text[0] == "model (MyTransformer): [5, 2, 8], [4, 2, 8], tgt_mask=[4, 4]"
    assert text[1] == "encoder (MyTransformerEncoder): [5, 2, 8]"
    assert "encoder.layers.0.linear1 (Linear): [5, 2, 8]  weight [12, 8]" in text
    assert "encoder.layers.0.linear1 -> [5, 2, 12]" in text
    assert "decoder.layers.0.self_attn (MyMultiheadAttention): [4, 2, 8], [4, 2, 8], [4, 2, 8], [4, 4]" in text
    assert "decoder.layers.0.multihead_attn (MyMultiheadAttention): [4, 2, 8], [5, 2, 8], [5, 2, 8]" in text
    assert "decoder.layers.0.multihead_attn -> ([4, 2, 8], None)" in text
    assert text[-1] == "model -> [4, 2, 8]"
    ran = {name for name, module in model.named_modules() if not isinstance(module, nn.ModuleList)}
    assert {line.split(" ")[0].replace("model", "") for line in text} == ran


def test_depth_is_indented(model: MyTransformer) -> None:
    lines: list[str] = []
    with trace_shapes(model, write=lines.append):
        model(SRC, TGT)
    for line in lines:
        name = line.split()[0]
        assert len(line) - len(line.lstrip()) == (0 if name == "model" else 2 * (name.count(".") + 1))


def test_the_walk_is_printed_when_nothing_else_takes_it(
    model: MyTransformer, capsys: pytest.CaptureFixture[str]
) -> None:
    model(SRC, TGT)
    assert capsys.readouterr().out == ""  # a forward alone prints nothing
    with trace_shapes(model.encoder):
        model.encoder(SRC)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "model (MyTransformerEncoder): [5, 2, 8]"
    assert printed[-1] == "model -> [5, 2, 8]"


def test_watching_changes_no_output_and_leaves_no_hook(model: MyTransformer) -> None:
    before = model(SRC, TGT)
    with trace_shapes(model, write=lambda line: None):
        assert hooks_in(model) > 0
        assert torch.equal(model(SRC, TGT), before)
    assert hooks_in(model) == 0
    assert torch.equal(model(SRC, TGT), before)


def test_hooks_go_when_the_forward_raises(model: MyTransformer) -> None:
    lines: list[str] = []
    with pytest.raises(ValueError, match="batch sizes differ"), trace_shapes(model, write=lines.append):
        model(SRC, TGT[:, :1])
    assert lines
    assert hooks_in(model) == 0


def test_a_walk_inside_a_walk_ends_alone(model: MyTransformer) -> None:
    outer: list[str] = []
    with trace_shapes(model, write=outer.append):
        with trace_shapes(model.encoder, write=lambda line: None):
            model.encoder(SRC)
        assert hooks_in(model) > 0
        outer.clear()
        model(SRC, TGT)
    assert outer[-1] == "model -> [4, 2, 8]"
    assert hooks_in(model) == 0
