"""The graphs that decode with a cache: their contracts, and modules that compute what the model computes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from exported_models import Exported, build, classification, couplet, shaken, translation
from mytx.exporter.contracts.contract import CACHED, GRAPHS, SEARCHES, Contract, TensorSpec
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.graphs.modules import arguments
from mytx.exporter.runtimes.composed import Stepped
from mytx.exporter.runtimes.eager import Eager
from mytx.models import Generator

MODELS: dict[str, Callable[[], Any]] = {
    "translation": translation,
    "norm first": lambda: translation(norm_first=True),
    "no bias, gelu": lambda: translation(bias=False, activation="gelu", final_norm=False),
    "one head": lambda: translation(nhead=1, num_decoder_layers=1),
    "heads of width 1": lambda: translation(nhead=16, num_decoder_layers=1),
    "couplet": couplet,
}


def made(kind: str) -> Any:
    torch.manual_seed(20)
    return shaken(MODELS[kind]())


def outline(specs: tuple[TensorSpec, ...]) -> list[tuple[Any, ...]]:
    return [(spec.name, spec.dtype, *spec.labels) for spec in specs]


def number(contract: Contract, name: str) -> TensorSpec:
    spec = contract.input(name)
    assert (spec.role, spec.axes) == ("number", ())
    return spec


# --- contracts -------------------------------------------------------------------------------------------------------

PADDING = ("src_key_padding_mask", "bool", "batch", "source")


def caches(name: str, first: tuple[str | int, ...], length: str | int) -> list[tuple[Any, ...]]:
    """Of the translation model: two layers, four heads of four."""
    found: list[tuple[Any, ...]] = []
    for layer in (0, 1):
        found.append((f"{name}_key_{layer}", "float32", *first, 4, 4, length))
        found.append((f"{name}_value_{layer}", "float32", *first, 4, length, 4))
    return found


def test_a_sequence_model_has_all_graphs_in_the_order_in_which_they_are_made() -> None:
    for model in (translation(), couplet()):
        assert tuple(graphs_of(model)) == GRAPHS
    assert set(SEARCHES) < set(CACHED) < set(GRAPHS)


def test_models_that_cannot_decode_have_none_of_them() -> None:
    for model in (classification("avg"), translation(num_decoder_layers=0)):
        assert not set(CACHED) & set(graphs_of(model))


def test_a_step_takes_and_gives_keys_and_values_of_each_layer() -> None:
    contract = graphs_of(translation())["step"].contract
    rows = ("batch", "beams")
    assert outline(contract.inputs) == [
        ("tgt", "int64", *rows),
        PADDING,
        *caches("cross", ("batch",), "source"),
        *caches("past", rows, "past"),
    ]
    assert outline(contract.outputs) == [("logits", "float32", *rows, 13), *caches("present", rows, "past + 1")]
    assert (contract.axes["past"].minimum, contract.axes["past"].maximum) == (0, 63)


def test_prefill_gives_what_a_step_takes() -> None:
    graphs = graphs_of(translation())
    contract = graphs["prefill"].contract
    assert outline(contract.inputs) == [("src", "int64", "batch", "source"), PADDING]
    cross, past = caches("cross", ("batch",), "source"), caches("past", ("batch", 1), 1)
    assert outline(contract.outputs) == [("logits", "float32", "batch", 1, 13), *cross, *past]
    wanted = {spec.name for spec in graphs["step"].contract.inputs} - {"tgt", "src_key_padding_mask"}
    assert {spec.name for spec in contract.outputs} - {"logits"} == wanted


@pytest.mark.parametrize(("positions", "longest"), [(64, 64), (300, 256)])
def test_searches_take_numbers_with_the_defaults_of_the_search_in_pytorch(positions: int, longest: int) -> None:
    model = translation(max_length=positions)
    graphs = graphs_of(model)
    defaults = {name: value.default for name, value in inspect.signature(Generator.forward).parameters.items()}
    defaults["max_length"] = longest
    names = ["max_length", "min_length", "num_beams", "length_penalty", "num_hypotheses"]
    generate, greedy = graphs["generate"].contract, graphs["greedy"].contract
    assert [spec.name for spec in generate.inputs] == ["src", "src_key_padding_mask", *names]
    assert [spec.name for spec in greedy.inputs] == [
        "src",
        "src_key_padding_mask",
        "max_length",
        "min_length",
        "length_penalty",
    ]
    for contract in (generate, greedy):
        assert contract.searches
        for spec in contract.inputs[2:]:
            assert number(contract, spec.name).default == defaults[spec.name]
            assert spec.dtype == ("float32" if spec.name == "length_penalty" else "int64")
        assert outline(contract.outputs) == [
            ("tokens", "int64", "batch", "hypotheses", "length"),
            ("lengths", "int64", "batch", "hypotheses"),
            ("scores", "float32", "batch", "hypotheses"),
        ]


@pytest.mark.parametrize("name", CACHED)
def test_a_contract_goes_to_plain_values_and_back(name: str) -> None:
    contract = graphs_of(translation())[name].contract
    assert Contract.from_dict(contract.to_dict()) == contract


def test_a_step_does_not_hold_what_makes_the_memorys_keys() -> None:
    graphs = graphs_of(translation())
    missing = set(graphs["decoder"].weights()) - set(graphs["step"].weights())
    assert missing == {
        f"my_transformer.decoder.layers.{layer}.multihead_attn.{part}_proj.{kind}"
        for layer in (0, 1)
        for part in "kv"
        for kind in ("weight", "bias")
    }
    for name in ("prefill", "greedy", "generate"):
        assert set(graphs[name].weights()) == set(graphs["full"].weights())


# --- modules ---------------------------------------------------------------------------------------------------------


def test_keys_and_values_are_grouped_by_what_they_are_of() -> None:
    names = ["tgt", "src_key_padding_mask", "cross_key_0", "cross_value_0", "past_key_0", "past_value_0", "past_key_1"]
    assert arguments({name: name for name in names}) == {
        "tgt": "tgt",
        "src_key_padding_mask": "src_key_padding_mask",
        "cross": ["cross_key_0", "cross_value_0"],
        "past": ["past_key_0", "past_value_0", "past_key_1"],
    }


def source(model: Any, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Ids, of which those of the last sentence are all padding, and the padding."""
    generator = torch.Generator().manual_seed(batch + length)
    src = torch.randint(0, model.config.src_vocab_size, (batch, length), generator=generator)
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[: batch // 2, length - length // 3 :] = True
    padding[-1] = batch > 1
    return src, padding


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(("batch", "length", "target"), [(1, 1, 1), (3, 7, 9)])
def test_cached_steps_give_the_models_logits_at_every_position(kind: str, batch: int, length: int, target: int) -> None:
    """From an empty past on, in another order after each step, and for a source that is nothing but padding."""
    model = made(kind).double()
    graphs = graphs_of(model)
    src, padding = source(model, batch, length)
    tgt = torch.randint(0, 13, (batch, target), generator=torch.Generator().manual_seed(3))
    stepped = Stepped(Eager(graphs["prefill"]), Eager(graphs["step"]), graphs["full"].contract)
    with torch.inference_mode():
        expected = model.decode(tgt, model.encode(src, padding), None, padding).numpy()
        given = {"src": src, "tgt": tgt, "src_key_padding_mask": padding}
        found = stepped.run({name: tensor.numpy() for name, tensor in given.items()})
    np.testing.assert_allclose(found["logits"], expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", MODELS)
def test_prefill_gives_the_first_logits_and_its_past_is_that_of_the_start(kind: str) -> None:
    model = made(kind).double()
    graphs = graphs_of(model)
    src, padding = source(model, 2, 5)
    start = torch.full((2, 1), model.config.bos_id)
    with torch.inference_mode():
        found = dict(
            zip(
                [spec.name for spec in graphs["prefill"].contract.outputs],
                graphs["prefill"].compute({"src": src, "src_key_padding_mask": padding}),
                strict=True,
            )
        )
        expected = model.decode(start, model.encode(src, padding), None, padding)
        torch.testing.assert_close(found.pop("logits"), expected, rtol=1e-11, atol=1e-11)
        following = torch.cat([start, torch.tensor([[4], [5]])], dim=1)
        now = {"tgt": following[:, 1:], "src_key_padding_mask": padding, **found}
        logits, *_ = graphs["step"].compute(now)
        whole = model.decode(following, model.encode(src, padding), None, padding)
        torch.testing.assert_close(logits, whole[:, 1:], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"max_length": 0}, {"max_length": 1}),
        ({"max_length": 9999}, {"max_length": 64}),
        ({"max_length": 5, "min_length": 9}, {"max_length": 5, "min_length": 5}),
        ({"min_length": -2}, {"min_length": 0}),
        ({"num_beams": -1}, {"num_beams": 1}),
        ({"num_beams": 99}, {"num_beams": 6}),
        ({"num_beams": 2, "num_hypotheses": 7}, {"num_beams": 2, "num_hypotheses": 2}),
        ({"num_beams": 2, "num_hypotheses": 0}, {"num_beams": 2, "num_hypotheses": 1}),
        ({"length_penalty": -1.5}, {"length_penalty": 0.0}),
    ],
)
def test_numbers_out_of_range_are_brought_into_it(given: dict[str, float], meant: dict[str, float]) -> None:
    model = build("translation")
    graph = graphs_of(model)["generate"]
    src, padding = source(model, 3, 5)
    defaults = {spec.name: spec.default for spec in graph.contract.inputs[2:]} | {"max_length": 8}
    tensors = {
        spec.name: torch.tensor({**defaults, **given}[spec.name], dtype=getattr(torch, spec.dtype))
        for spec in graph.contract.inputs[2:]
    }
    with torch.inference_mode():
        found = graph.compute({"src": src, "src_key_padding_mask": padding, **tensors})
    numbers = {**defaults, **meant}
    expected = Generator(model)(src, padding, **numbers)  # type: ignore[arg-type]
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_greedy_is_generate_with_one_beam(exports: Callable[[str], Exported]) -> None:
    exported = exports("translation")
    model = exported.model
    src, padding = source(model, 4, 6)
    numbers = {"max_length": 9, "min_length": 1, "length_penalty": 0.5}
    contract = exported.contract("greedy")
    tensors = {
        name: torch.tensor(value, dtype=getattr(torch, contract.input(name).dtype)) for name, value in numbers.items()
    }
    with torch.inference_mode():
        found = exported.every["greedy"].compute({"src": src, "src_key_padding_mask": padding, **tensors})
    for one, other in zip(found, Generator(model)(src, padding, **numbers), strict=True):  # type: ignore[arg-type]
        assert torch.equal(one, other)
