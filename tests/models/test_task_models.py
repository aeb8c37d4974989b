"""The task models: what they compute, what must not influence them, and the keys of published checkpoints."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from layout_writers import classification, couplet, outputs, transformer, translation
from mytx.models import ClassificationModel, CoupletModel, TranslationModel
from mytx.models.embedding import PositionalEncoding, TokenEmbedding, sinusoidal_positions

SEQUENCE_MODELS = [translation, couplet]
ALL_MODELS = [translation, couplet, classification, transformer]


def ids(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 11, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("make", SEQUENCE_MODELS)
@pytest.mark.parametrize(("batch", "source", "target"), [(1, 1, 1), (2, 5, 3), (3, 4, 7)])
def test_forward_is_decode_of_encode(make: Any, batch: int, source: int, target: int) -> None:
    model = make()
    src, tgt = ids(batch, source), ids(batch, target, seed=2)
    padding, target_padding = torch.zeros(batch, source).bool(), torch.zeros(batch, target).bool()
    padding[0, source // 2 + 1 :] = True
    target_padding[0, target // 2 + 1 :] = True
    memory = model.encode(src, padding)
    logits = model.decode(tgt, memory, target_padding, padding)
    assert memory.shape == (batch, source, 16)
    assert logits.shape == (batch, target, model.config.tgt_vocab_size)
    assert torch.equal(model(src, tgt, padding, target_padding), logits)
    assert torch.equal(model(src, tgt), model.decode(tgt, model.encode(src)))


@pytest.mark.parametrize("make", SEQUENCE_MODELS)
def test_the_future_never_leaks(make: Any) -> None:
    model = make().double()
    src, tgt = ids(2, 4), ids(2, 6, seed=2)
    expected = model(src, tgt)
    for position in range(1, 6):
        changed = tgt.clone()
        changed[:, position:] = (changed[:, position:] + 1) % 11
        logits = model(src, changed)
        torch.testing.assert_close(logits[:, :position], expected[:, :position], rtol=1e-12, atol=1e-13)
        assert not torch.allclose(logits[:, position], expected[:, position])
        torch.testing.assert_close(
            model(src, tgt[:, :position]), expected[:, :position], rtol=1e-12, atol=1e-13
        )  # and a shorter target is a prefix


@pytest.mark.parametrize("make", SEQUENCE_MODELS)
def test_what_stands_behind_padding_changes_nothing_elsewhere(make: Any) -> None:
    model = make().double()
    src, tgt = ids(3, 5), ids(3, 6, seed=2)
    padding = torch.tensor([[0, 0, 0, 1, 1], [1, 1, 0, 0, 0], [0, 1, 0, 1, 0]]).bool()  # right, left, holes
    target_padding = torch.tensor([[0, 0, 0, 0, 1, 1], [1, 0, 0, 0, 0, 0], [0, 0, 1, 0, 1, 0]]).bool()
    other_src = torch.where(padding, (src + 3) % 11, src)
    other_tgt = torch.where(target_padding, (tgt + 3) % 11, tgt)
    memory, other = model.encode(src, padding), model.encode(other_src, padding)
    torch.testing.assert_close(memory[~padding], other[~padding], rtol=1e-12, atol=1e-13)
    logits = model(src, tgt, padding, target_padding)
    others = model(other_src, other_tgt, padding, target_padding)
    torch.testing.assert_close(logits[~target_padding], others[~target_padding], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("make", ALL_MODELS)
def test_the_scripted_model_equals_the_eager_one(make: Any) -> None:
    model = make()
    scripted = torch.jit.script(model)
    torch.testing.assert_close(outputs(model, run=scripted), outputs(model), rtol=1e-6, atol=1e-6)
    if make in SEQUENCE_MODELS:
        memory = scripted.encode(ids(2, 7))
        torch.testing.assert_close(memory, model.encode(ids(2, 7)), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(
            scripted.decode(ids(2, 3), memory), model.decode(ids(2, 3), memory), rtol=1e-6, atol=1e-6
        )


LAYER = [f"{name}.{kind}" for name in ("linear1", "linear2", "norm1", "norm2") for kind in ("weight", "bias")]


def attention(block: str) -> list[str]:
    return [f"{block}.{letter}_proj.{kind}" for letter in ("q", "k", "v", "out") for kind in ("weight", "bias")]


def stack_keys(prefix: str) -> set[str]:
    encoder = [f"encoder.layers.{n}.{name}" for n in range(2) for name in attention("self_attn") + LAYER]
    decoder = [
        f"decoder.layers.{n}.{name}"
        for n in range(1)
        for name in attention("self_attn") + attention("multihead_attn") + LAYER + ["norm3.weight", "norm3.bias"]
    ]
    norms = [f"{stack}.norm.{kind}" for stack in ("encoder", "decoder") for kind in ("weight", "bias")]
    return {prefix + name for name in encoder + decoder + norms}


HEAD = {"pos_embedding.pe", "classification.weight", "classification.bias"}


def test_state_dict_keys_are_upstreams() -> None:
    both = {"src_token_embedding.embedding.weight", "tgt_token_embedding.embedding.weight"}
    assert set(translation().state_dict()) == stack_keys("my_transformer.") | HEAD | both
    assert set(couplet().state_dict()) == stack_keys("my_transformer.") | HEAD | {"token_embedding.embedding.weight"}
    assert set(transformer().state_dict()) == stack_keys("")
    encoder = {name for name in stack_keys("") if name.startswith("encoder.")}
    classifier = {f"classifier.{n}.{kind}" for n in (0, 2) for kind in ("weight", "bias")}
    outer = {"pos_embedding.pe", "src_token_embedding.embedding.weight"}
    assert set(classification().state_dict()) == encoder | classifier | outer


@pytest.mark.parametrize(("scale", "factor"), [(None, 4.0), (1.0, 1.0), (0.5, 0.5)])
def test_embeddings_are_scaled(scale: float | None, factor: float) -> None:
    embedding = TokenEmbedding(5, 16, scale)
    tokens = torch.tensor([[1, 4], [0, 2]])
    assert torch.equal(embedding(tokens), embedding.embedding.weight[tokens] * factor)
    model = translation(embedding_scale=scale)
    assert model.src_token_embedding.scale == model.tgt_token_embedding.scale == factor == model.config.scale


@pytest.mark.parametrize("width", [6, 7])
def test_positions_are_interleaved_sines_and_cosines_from_zero(width: int) -> None:
    table = sinusoidal_positions(9, width)
    for position in range(9):
        for column in range(width):
            angle = position / 10000.0 ** ((column - column % 2) / width)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert abs(table[position, column].item() - expected) < 1e-6
    assert PositionalEncoding(width).pe.shape == (5000, 1, width)
    encoding = PositionalEncoding(width, max_len=9).eval()
    x = torch.randn(4, 2, width)
    assert torch.equal(encoding(x), x + table[:4].unsqueeze(1))


def test_more_positions_than_there_are_name_both() -> None:
    for model in (translation(), couplet()):
        with pytest.raises(ValueError, match=r"length 21 .* 20 positions"):
            model.encode(ids(1, 21))
        with pytest.raises(ValueError, match=r"length 21 .* 20 positions"):
            model.decode(ids(1, 21), torch.zeros(1, 3, 16))
        model.encode(ids(1, 20))
    with pytest.raises(ValueError, match=r"length 21 .* 20 positions"):
        classification()(ids(1, 21))


def test_a_mask_that_does_not_fit_names_both_sizes() -> None:
    with pytest.raises(ValueError, match=r"\[2, 3\], expected \[2, 4\]"):
        translation()(ids(2, 4), ids(2, 5), torch.zeros(2, 3).bool())


PADDING = torch.tensor([[0, 0, 0, 1], [1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()


@pytest.mark.parametrize("pooling", ["sum", "avg", "last", "upstream-sum", "upstream-avg", "upstream-last"])
def test_pooling_equals_the_calculation_by_hand(pooling: str) -> None:
    model = classification(pooling=pooling).double()
    src = ids(4, 4)
    memory = model.encode(src, PADDING)
    rows = []
    for row, padding in zip(memory, PADDING, strict=True):
        real = row if pooling.startswith("upstream-") else row[~padding]
        if len(real) == 0:
            rows.append(torch.zeros(16, dtype=torch.float64))
        elif pooling.endswith("last"):
            rows.append(real[-1])
        else:
            rows.append(real.sum(0) / (len(real) if pooling.endswith("avg") else 1))
    pooled = torch.stack(rows)
    torch.testing.assert_close(model.pool(memory, PADDING), pooled, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(model(src, PADDING), model.classifier(pooled), rtol=1e-12, atol=1e-14)
    assert model(src, PADDING).isfinite().all()
    whole = model.encode(src)
    expected = {"sum": whole.sum(1), "avg": whole.mean(1), "last": whole[:, -1]}[pooling.split("-")[-1]]
    torch.testing.assert_close(model(src), model.classifier(expected), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("pooling", ["sum", "avg", "last"])
def test_classification_does_not_see_padding(pooling: str) -> None:
    model = classification(pooling=pooling).double()
    src = ids(4, 4)
    other = torch.where(PADDING, (src + 5) % 11, src)
    torch.testing.assert_close(model(src, PADDING), model(other, PADDING), rtol=1e-12, atol=1e-13)
    memory = model.encode(src, PADDING)
    broken = memory.masked_fill(PADDING.unsqueeze(-1), math.inf)
    assert torch.equal(model.pool(memory, PADDING), model.pool(broken, PADDING))


@pytest.mark.parametrize("make", [translation, couplet, classification])
def test_a_row_of_padding_alone_is_finite(make: Any) -> None:
    model = make()
    padding = torch.tensor([[True] * 4, [False] * 4])
    arguments = (ids(2, 4), padding) if make is classification else (ids(2, 4), ids(2, 3), padding)
    assert model(*arguments).isfinite().all()


def test_sizes_that_do_not_fit_name_the_values() -> None:
    with pytest.raises(ValueError, match=r"pad_id \(11\).*11"):
        TranslationModel(11, 13, 16, 4, 1, 1, 24, pad_id=11)
    with pytest.raises(ValueError, match=r"eos_id \(12\).*12"):
        CoupletModel(12, 16, 4, 1, 1, 24, eos_id=12)
    with pytest.raises(ValueError, match="pooling must be one of"):
        ClassificationModel(12, 16, 4, 1, 24, pooling="max")
    with pytest.raises(ValueError, match=r"16.*3"):
        TranslationModel(11, 13, 16, 3)
