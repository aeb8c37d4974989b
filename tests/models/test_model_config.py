"""Configurations: what they refuse, and their JSON. Presets are data."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from layout_writers import classification, couplet, transformer, translation
from mytx.models import PRESETS, Assumption, ModelConfig, build_model, build_preset, config_of
from mytx.transformer import TransformerConfig

SMALL = TransformerConfig(d_model=16, nhead=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "gpt"}, "kind must be one of .* got 'gpt'"),
        ({"pooling": "max"}, "pooling must be one of .* got 'max'"),
        ({"src_vocab_size": 0}, "src_vocab_size must be positive, got 0"),
        ({"max_length": 0}, "max_length must be positive, got 0"),
        ({"embedding_scale": float("nan")}, "embedding_scale must be finite, got nan"),
        ({"pad_id": 9}, r"pad_id \(9\) is outside the source vocabulary of 9"),
        ({"pad_id": -1}, r"pad_id \(-1\)"),
        ({"bos_id": 8}, r"bos_id \(8\) is outside the target vocabulary of 8"),
        ({"eos_id": 8}, r"eos_id \(8\)"),
        ({"kind": "classification"}, "dim_classification must be positive, got 0"),
        ({"kind": "classification", "dim_classification": 4}, "num_classification must be positive, got 0"),
    ],
)
def test_a_value_that_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    values = {"kind": "translation", "transformer": SMALL, "src_vocab_size": 9, "tgt_vocab_size": 8, **changes}
    with pytest.raises(ValueError, match=message):
        ModelConfig(**values)


@pytest.mark.parametrize("make", [translation, couplet, classification, transformer])
def test_a_configuration_goes_through_json_and_builds_the_same_model(make: Any) -> None:
    options = {} if make is transformer else {"pad_id": 3, "embedding_scale": 1.5}
    model = make(activation="gelu", norm_first=True, final_norm=False, layer_norm_eps=1e-6, bias=False, **options)
    assumed = (Assumption("activation", "gelu", "option"), Assumption("norm_first", False))
    config = config_of(model).with_assumed(assumed)
    again = ModelConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    built = build_model(again)
    assert type(built) is type(model)
    assert config_of(built) == config
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    assert {name: tensor.shape for name, tensor in built.state_dict().items()} == shapes


def test_a_bare_transformer_keeps_its_assumptions_and_scripts() -> None:
    config = ModelConfig("transformer", SMALL, assumed=(Assumption("activation", "relu"),))
    model = build_model(config)
    assert config_of(model) == config
    torch.jit.script(model)
    assert config_of(transformer()).assumed == ()


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"kind": "translation"},
        {"kind": "transformer", "transformer": {"d_model": 16}, "heads": 3},
        {"kind": "transformer", "transformer": {"width": 16}},
        {"kind": "transformer", "transformer": {"d_model": "16", "nhead": 4}},
        {"kind": "transformer", "transformer": {"d_model": 16.0, "nhead": 4}},
        {"kind": "transformer", "transformer": {"d_model": 16, "nhead": True}},
        {"kind": "transformer", "transformer": {"d_model": 16, "nhead": 3}},
        {"kind": "transformer", "transformer": 7},
        {"kind": "transformer", "transformer": {}, "assumed": ["activation"]},
        {"kind": "transformer", "transformer": {}, "pad_id": None},
        [1],
        None,
    ],
)
def test_what_is_no_configuration_is_a_value_error(values: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        ModelConfig.from_dict(values)


def test_an_unknown_extra_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unknown model options: colour"):
        translation(colour="red")


def test_an_assumption_reads_well() -> None:
    assert str(Assumption("layer_norm_eps", 1e-5)) == "layer_norm_eps=1e-05 (default)"


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("tiny", (100, 32, 4, 2, 2, 64)),
        ("small", (8000, 256, 8, 3, 3, 1024)),
        ("base", (32000, 512, 8, 6, 6, 2048)),
        ("big", (32000, 1024, 16, 6, 6, 4096)),
    ],
)
def test_presets_have_their_sizes(name: str, sizes: tuple[int, ...]) -> None:
    assert tuple(PRESETS[name]) == sizes
    with torch.device("meta"):
        model = build_preset(name)
    config = config_of(model)
    assert (config.src_vocab_size, config.tgt_vocab_size) == (sizes[0], sizes[0])
    assert (config.transformer.d_model, config.transformer.nhead) == sizes[1:3]
    assert (config.transformer.num_encoder_layers, config.transformer.num_decoder_layers) == sizes[3:5]
    assert config.transformer.dim_feedforward == sizes[5]
    assert model.classification.weight.shape == sizes[:2]


def test_an_unknown_preset_lists_those_that_exist() -> None:
    with pytest.raises(ValueError, match="tiny, small, base, big, got 'huge'"):
        build_preset("huge")
