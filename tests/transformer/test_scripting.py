"""torch.jit.script takes every module with any masks, and a script can be saved and loaded."""

from __future__ import annotations

import io
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from mytx.transformer import (
    MyMultiheadAttention,
    MyTransformer,
    MyTransformerDecoderLayer,
    MyTransformerEncoderLayer,
    causal_mask,
    generate_square_subsequent_mask,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")

SIZES = [(5, 4, 3), (2, 7, 1)]  # S, T, N
PADDINGS = ["src_key_padding_mask", "tgt_key_padding_mask", "memory_key_padding_mask"]
ALL_MASKS = ["src_mask", "tgt_mask", "memory_mask", *PADDINGS]


def subsets(names: list[str]) -> list[tuple[str, ...]]:
    return [chosen for size in range(len(names) + 1) for chosen in itertools.combinations(names, size)]


def named(chosen: tuple[str, ...]) -> str:
    return "+".join(chosen) or "no masks"


def mask_of(name: str, source: int, target: int, batch: int) -> Tensor:
    """One mask of each kind between them: float and bool, 2-D and 3-D (2 heads)."""
    masks = {
        "src_mask": torch.randn(source, source),
        "tgt_mask": generate_square_subsequent_mask(target),
        "memory_mask": torch.rand(batch * 2, target, source) < 0.4,
        "src_key_padding_mask": torch.rand(batch, source) < 0.3,
        "tgt_key_padding_mask": torch.rand(batch, target) < 0.3,
        "memory_key_padding_mask": torch.randn(batch, source),
    }
    return masks[name]


def same_when_scripted(module: Any, scripted: Any, names: tuple[str, ...], chosen: tuple[str, ...], check: Any) -> None:
    """Three rounds at two sizes: the first run of a script records, later ones take specialised code."""
    for source, target, batch in SIZES * 3:
        lengths = {"src": source, "tgt": target, "memory": source}
        inputs = [torch.randn(lengths[name], batch, 8) for name in names]
        masks = {name: mask_of(name, source, target, batch) for name in chosen}
        with torch.no_grad():
            check(scripted(*inputs, **masks), module(*inputs, **masks), 2e-6)


@pytest.fixture(scope="module")
def model_and_script() -> tuple[MyTransformer, torch.jit.ScriptModule]:
    torch.manual_seed(0)
    model = MyTransformer(8, 2, 1, 1, 12).eval()
    return model, torch.jit.script(model)


@pytest.mark.parametrize("chosen", subsets(ALL_MASKS), ids=named)
def test_a_scripted_transformer_equals_eager_with_any_masks(
    chosen: tuple[str, ...], model_and_script: Any, assert_close: Any
) -> None:
    same_when_scripted(*model_and_script, ("src", "tgt"), chosen, assert_close)


@pytest.mark.parametrize("chosen", subsets(["src_mask", "src_key_padding_mask"]), ids=named)
def test_a_scripted_encoder_layer_equals_eager_with_any_masks(
    chosen: tuple[str, ...], shake: Any, assert_close: Any
) -> None:
    layer = shake(MyTransformerEncoderLayer(8, 2, 12), torch.float32)
    same_when_scripted(layer, torch.jit.script(layer), ("src",), chosen, assert_close)


@pytest.mark.parametrize("chosen", subsets([name for name in ALL_MASKS if "src" not in name]), ids=named)
def test_a_scripted_decoder_layer_equals_eager_with_any_masks(
    chosen: tuple[str, ...], shake: Any, assert_close: Any
) -> None:
    layer = shake(MyTransformerDecoderLayer(8, 2, 12), torch.float32)
    same_when_scripted(layer, torch.jit.script(layer), ("tgt", "memory"), chosen, assert_close)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("chosen", subsets(["attn_mask", "key_padding_mask"]), ids=named)
def test_scripted_attention_equals_eager_with_any_masks(
    chosen: tuple[str, ...], need_weights: bool, attention: MyMultiheadAttention, assert_close: Any
) -> None:
    scripted = torch.jit.script(attention)
    for source, target, batch in SIZES * 3:
        masks = {"attn_mask": torch.rand(target, source) < 0.4, "key_padding_mask": torch.rand(batch, source) < 0.3}
        inputs = [torch.randn(n, batch, 8, dtype=torch.float64) for n in (target, source, source)]
        given: dict[str, Any] = {name: masks[name] for name in chosen}
        expected, expected_weights = attention(*inputs, **given, need_weights=need_weights)
        output, weights = scripted(*inputs, **given, need_weights=need_weights)
        assert_close(output, expected)
        if need_weights:
            assert_close(weights, expected_weights)
        else:
            assert weights is expected_weights is None


@pytest.mark.parametrize(
    "changes",
    [
        {"activation": "relu", "num_encoder_layers": 1, "num_decoder_layers": 1},
        {"activation": "gelu", "num_encoder_layers": 1, "num_decoder_layers": 6},
        {"activation": "silu", "num_encoder_layers": 6, "num_decoder_layers": 1},
        {"activation": "gelu", "norm_first": True},
        {"final_norm": False},
        {"bias": False},
        {"bias": False, "norm_first": True, "final_norm": False, "layer_norm_eps": 1e-3},
        {"num_encoder_layers": 0},
    ],
    ids=lambda changes: ", ".join(f"{name}={value}" for name, value in changes.items()),
)
def test_a_script_in_a_file_equals_eager(changes: dict[str, Any], make_model: Any, assert_close: Any) -> None:
    model = make_model(**changes)
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(model), file)
    file.seek(0)
    loaded = torch.jit.load(file)
    assert list(loaded.state_dict()) == list(model.state_dict())
    for source, target, batch in SIZES * 2:
        src, tgt = (torch.randn(n, batch, 8, dtype=torch.float64) for n in (source, target))
        masks = {"tgt_mask": causal_mask(target), "src_key_padding_mask": torch.rand(batch, source) < 0.3}
        with torch.no_grad():
            assert_close(loaded(src, tgt, **masks), model(src, tgt, **masks))


def test_a_scripted_model_drops_out_in_training_and_not_in_eval(make_model: Any) -> None:
    scripted = torch.jit.script(make_model(dropout=0.5))
    src, tgt = (torch.randn(n, 2, 8, dtype=torch.float64) for n in (5, 4))
    assert torch.equal(scripted(src, tgt), scripted(src, tgt))
    scripted.train()
    assert not torch.equal(scripted(src, tgt), scripted(src, tgt))


def test_a_script_says_which_size_is_wrong(make_model: Any) -> None:
    scripted = torch.jit.script(make_model())
    src, tgt = torch.randn(5, 3, 8, dtype=torch.float64), torch.randn(4, 2, 8, dtype=torch.float64)
    with pytest.raises(torch.jit.Error, match="batch sizes differ: query 2, key 3"):
        scripted(src, tgt)
