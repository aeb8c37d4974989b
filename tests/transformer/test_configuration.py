"""A frozen configuration describes a model."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
import torch
from torch import nn

from mytx.transformer import (
    ACTIVATIONS,
    MyTransformer,
    MyTransformerDecoderLayer,
    MyTransformerEncoderLayer,
    TransformerConfig,
)

SMALL = {"d_model": 12, "nhead": 3, "num_encoder_layers": 1, "num_decoder_layers": 2, "dim_feedforward": 5}
CHANGES: list[dict[str, Any]] = [
    {},
    {"dropout": 0.0},
    {"activation": "gelu"},
    {"activation": "silu", "norm_first": True},
    {"final_norm": False},
    {"layer_norm_eps": 1e-3},
    {"bias": False},
    {"num_encoder_layers": 0, "num_decoder_layers": 0},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_a_model_holds_the_configuration_that_builds_it_again(changes: dict[str, Any]) -> None:
    config = TransformerConfig(**{**SMALL, **changes})
    model = MyTransformer.from_config(config)
    assert model.config == config
    assert TransformerConfig(**config.to_dict()) == config
    again = MyTransformer.from_config(model.config)
    again.load_state_dict(model.state_dict())
    src, tgt = torch.randn(3, 2, 12), torch.randn(4, 2, 12)
    assert torch.equal(again.eval()(src, tgt), model.eval()(src, tgt))


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_both_ways_to_build_start_from_the_same_weights(changes: dict[str, Any]) -> None:
    arguments = {**SMALL, **changes}
    torch.manual_seed(5)
    direct = MyTransformer(**arguments).state_dict()
    torch.manual_seed(5)
    through_config = MyTransformer.from_config(TransformerConfig(**arguments)).state_dict()
    assert list(direct) == list(through_config)
    assert all(torch.equal(direct[name], through_config[name]) for name in direct)


def test_another_random_seed_starts_from_other_weights() -> None:
    torch.manual_seed(5)
    first = MyTransformer(**SMALL).encoder.layers[0].linear1.weight
    torch.manual_seed(6)
    assert not torch.equal(first, MyTransformer(**SMALL).encoder.layers[0].linear1.weight)


def test_every_layer_of_a_stack_has_weights_of_its_own() -> None:
    layers = MyTransformer(**SMALL).decoder.layers
    assert layers[0].linear1.weight.data_ptr() != layers[1].linear1.weight.data_ptr()


def test_initial_matrices_are_xavier_uniform() -> None:
    for name, parameter in MyTransformer(**SMALL).named_parameters():
        if parameter.dim() > 1:
            bound = (6 / sum(parameter.shape)) ** 0.5
            assert 0.8 * bound < parameter.abs().max() <= bound, name


@pytest.mark.parametrize("build", [MyTransformer, MyTransformerEncoderLayer, MyTransformerDecoderLayer])
def test_defaults_are_the_configurations(build: Any) -> None:
    fields = {field.name: field.default for field in dataclasses.fields(TransformerConfig)}
    parameters = inspect.signature(build).parameters
    given = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    assert given
    assert given == {name: fields[name] for name in given}
    if build is MyTransformer:
        assert list(parameters) == list(fields)


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TransformerConfig().d_model = 8  # type: ignore[misc]


@pytest.mark.parametrize(("name", "kind"), [("relu", nn.ReLU), ("gelu", nn.GELU), ("silu", nn.SiLU)])
def test_an_activation_is_the_one_it_is_called(name: str, kind: type[nn.Module]) -> None:
    assert ACTIVATIONS[name] is kind
    model = MyTransformer(**SMALL, activation=name)
    layers = [*model.encoder.layers, *model.decoder.layers]
    assert [type(layer.activation) for layer in layers] == [kind] * len(layers)


@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_the_epsilon_reaches_every_norm(eps: float) -> None:
    norms = [m for m in MyTransformer(**SMALL, layer_norm_eps=eps).modules() if isinstance(m, nn.LayerNorm)]
    assert [norm.eps for norm in norms] == [eps] * (2 * 1 + 3 * 2 + 2)


def test_without_bias_nothing_has_one_and_without_final_norms_there_are_none() -> None:
    keys = list(MyTransformer(**SMALL, bias=False, final_norm=False).state_dict())
    assert [key for key in keys if key.endswith("bias")] == []
    assert [key for key in keys if key.startswith(("encoder.norm", "decoder.norm"))] == []
    assert len(keys) == (4 + 2 + 2) * 1 + (8 + 2 + 3) * 2
