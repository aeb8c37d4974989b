"""The graphs of each model: contracts, masks and weights."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch

from exported_models import EVERY_MASK, KINDS, build, classification, couplet, plain, translation
from mytx.exporter import OptionError
from mytx.exporter.cases.plan import optional_cases
from mytx.exporter.contracts.contract import GRAPHS, TensorSpec
from mytx.exporter.graphs.graph import Graph
from mytx.exporter.graphs.model_graphs import MASK_AXES, graphs_of, masks_of, parse_masks
from mytx.transformer import MyTransformer

INT, BOOL, FLOAT = "int64", "bool", "float32"


def outline(specs: tuple[TensorSpec, ...]) -> list[tuple[Any, ...]]:
    return [(spec.name, spec.dtype, *spec.labels) for spec in specs]


SRC = ("src", INT, "batch", "source")
TGT = ("tgt", INT, "batch", "target")
SRC_PADDING = ("src_key_padding_mask", BOOL, "batch", "source")
TGT_PADDING = ("tgt_key_padding_mask", BOOL, "batch", "target")
MEMORY_PADDING = ("memory_key_padding_mask", BOOL, "batch", "source")
MEMORY = ("memory", FLOAT, "batch", "source", 16)
LOGITS = ("logits", FLOAT, "batch", "target", 13)


@pytest.mark.parametrize("model", [translation(), couplet()], ids=["translation", "couplet"])
def test_models_on_ids_have_batch_first_graphs_with_the_causal_mask_inside(model: Any) -> None:
    graphs = graphs_of(model)
    assert list(graphs)[:3] == ["encoder", "decoder", "full"]
    assert outline(graphs["encoder"].contract.inputs) == [SRC, SRC_PADDING]
    assert outline(graphs["encoder"].contract.outputs) == [MEMORY]
    assert outline(graphs["decoder"].contract.inputs) == [TGT, MEMORY, TGT_PADDING, MEMORY_PADDING]
    assert outline(graphs["decoder"].contract.outputs) == [LOGITS]
    assert outline(graphs["full"].contract.inputs) == [SRC, TGT, SRC_PADDING, TGT_PADDING]
    assert outline(graphs["full"].contract.outputs) == [LOGITS]
    for graph in graphs.values():
        assert graph.contract.layout == "batch first"
        assert graph.contract.graph == graph.name


def test_a_classification_model_has_an_encoder_and_a_full_graph() -> None:
    graphs = graphs_of(classification("sum"))
    assert list(graphs) == ["encoder", "full"]
    assert outline(graphs["encoder"].contract.inputs) == outline(graphs["full"].contract.inputs) == [SRC, SRC_PADDING]
    assert outline(graphs["encoder"].contract.outputs) == [MEMORY]
    assert outline(graphs["full"].contract.outputs) == [("logits", FLOAT, "batch", 3)]


def test_a_bare_transformer_has_sequence_first_graphs_with_the_default_masks() -> None:
    graphs = graphs_of(MyTransformer(16, 2, 1, 1, 24))
    src, tgt = ("src", FLOAT, "source", "batch", 16), ("tgt", FLOAT, "target", "batch", 16)
    memory, causal = ("memory", FLOAT, "source", "batch", 16), ("tgt_mask", FLOAT, "target", "target")
    assert list(graphs) == ["encoder", "decoder", "full"]
    assert outline(graphs["encoder"].contract.inputs) == [src, SRC_PADDING]
    assert outline(graphs["encoder"].contract.outputs) == [("output", FLOAT, "source", "batch", 16)]
    assert outline(graphs["decoder"].contract.inputs) == [tgt, memory, causal, TGT_PADDING, MEMORY_PADDING]
    assert outline(graphs["decoder"].contract.outputs) == [("output", FLOAT, "target", "batch", 16)]
    assert outline(graphs["full"].contract.inputs) == [src, tgt, causal, SRC_PADDING, TGT_PADDING, MEMORY_PADDING]
    assert outline(graphs["full"].contract.outputs) == [("output", FLOAT, "target", "batch", 16)]
    for graph in graphs.values():
        assert graph.contract.layout == "sequence first"
        assert graph.contract.ids == {}


def test_every_mask_of_a_bare_transformer_can_be_an_input_in_the_kind_asked_for() -> None:
    graphs = graphs_of(MyTransformer(16, 2, 1, 1, 24), EVERY_MASK)
    masks = [
        ("src_mask", BOOL, "source", "source"),
        ("tgt_mask", FLOAT, "2*batch", "target", "target"),
        ("memory_mask", FLOAT, "target", "source"),
        ("src_key_padding_mask", FLOAT, "batch", "source"),
        ("tgt_key_padding_mask", BOOL, "batch", "target"),
        ("memory_key_padding_mask", FLOAT, "batch", "source"),
    ]
    assert outline(graphs["full"].contract.inputs[2:]) == masks
    assert outline(graphs["encoder"].contract.inputs[1:]) == [masks[0], masks[3]]
    assert outline(graphs["decoder"].contract.inputs[2:]) == [masks[1], masks[2], masks[4], masks[5]]


def test_a_bare_transformer_can_have_no_masks_at_all() -> None:
    graphs = graphs_of(MyTransformer(16, 2, 1, 1, 24), "")
    names = {name: [spec.name for spec in graph.contract.inputs] for name, graph in graphs.items()}
    assert names == {"encoder": ["src"], "decoder": ["tgt", "memory"], "full": ["src", "tgt"]}


@pytest.mark.parametrize("kind", KINDS)
def test_every_mask_says_in_words_which_way_round_it_is(kind: str) -> None:
    seen = 0
    for graph in graphs_of(build(kind), KINDS[kind][1]).values():
        for spec in graph.contract.inputs:
            if spec.name.endswith("key_padding_mask"):
                assert spec.role == "padding"
                words = "True = padding" if spec.dtype == BOOL else "-inf = padding"
            elif spec.name.endswith("mask"):
                assert spec.role == "attention"
                words = "True = this query may not attend" if spec.dtype == BOOL else "-inf = may not"
            else:
                number = spec.default is not None
                assert spec.role == ("number" if number else "ids" if spec.dtype == INT else "values")
                assert spec.meaning
                continue
            assert words in spec.meaning
            seen += 1
    assert seen >= 2


def test_ids_are_bounded_by_the_vocabulary_of_their_own_side() -> None:
    graphs = graphs_of(translation())
    assert {spec.name: spec.limit for spec in graphs["full"].contract.inputs if spec.role == "ids"} == {
        "src": 11,
        "tgt": 13,
    }
    assert "0 to 12" in graphs["decoder"].contract.input("tgt").meaning


def test_special_ids_are_those_of_the_model() -> None:
    ids = {"pad_id": 3, "bos_id": 5, "eos_id": 4}
    for graph in graphs_of(translation(**ids)).values():
        assert graph.contract.ids == {"pad": 3, "bos": 5, "eos": 4}
    for graph in graphs_of(classification("sum", pad_id=6)).values():
        assert graph.contract.ids == {"pad": 6}


def test_lengths_of_models_with_positions_are_bounded_by_them() -> None:
    graphs = graphs_of(translation(max_length=9))
    axes = graphs["full"].contract.axes
    assert {name: axis.maximum for name, axis in axes.items()} == {"batch": None, "source": 9, "target": 9}
    bare = graphs_of(MyTransformer(16, 2, 1, 1, 24))["full"].contract.axes
    assert {axis.maximum for axis in bare.values()} == {None}


def test_too_few_positions_to_trace_at_are_refused() -> None:
    with pytest.raises(OptionError, match="7 positions are too few to export, more than 7 are needed"):
        graphs_of(translation(max_length=7))
    assert tuple(graphs_of(translation(max_length=8))) == GRAPHS


# --- formats in which an input can be left out ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_flexible_contract_has_every_mask_and_only_masks_may_be_left_out(kind: str) -> None:
    for graph in plain(graphs_of(build(kind), KINDS[kind][1])).values():
        flexible = graph.flexible
        masks = {name for name in inspect.signature(graph.module.forward).parameters if name.endswith("mask")}
        assert {spec.name for spec in flexible.inputs if spec.optional} == masks
        assert {spec.name for spec in flexible.inputs if not spec.optional} == {
            spec.name for spec in graph.contract.inputs if spec.role in ("ids", "values")
        }
        assert flexible.outputs == graph.contract.outputs
        for spec in graph.contract.inputs:
            assert replace(flexible.input(spec.name), optional=False) == spec


@pytest.mark.parametrize("masks", ["", "tgt_mask:3d", "src_key_padding_mask:float,memory_mask:bool", EVERY_MASK])
def test_masks_that_a_file_has_not_are_those_that_a_flexible_one_has_more(masks: str) -> None:
    kinds = parse_masks(masks)
    for graph in graphs_of(MyTransformer(16, 2, 1, 1, 24), masks).values():
        given = {spec.name for spec in graph.contract.inputs}
        more = {spec.name for spec in graph.more}
        assert not given & more
        assert given | more == {spec.name for spec in graph.flexible.inputs}
        assert more == {name for name in set(MASK_AXES) - set(kinds) if name in more}
        assert all(spec.dtype == (BOOL if spec.name.endswith("key_padding_mask") else FLOAT) for spec in graph.more)


@pytest.mark.parametrize("kind", KINDS)
def test_every_mask_may_be_left_out_of_the_modules_call(kind: str) -> None:
    for graph in plain(graphs_of(build(kind), KINDS[kind][1])).values():
        cases = optional_cases(graph.flexible)
        outputs = []
        for case in cases:
            with torch.no_grad():
                given = {name: torch.from_numpy(array) for name, array in case.inputs.items()}
                outputs.append(graph.module(**given))
        assert {output.shape for output in outputs} == {outputs[0].shape}
        for case, output in zip(cases[1:], outputs[1:], strict=True):  # each mask matters
            assert not torch.equal(output, outputs[0]), case.words


# --- masks -----------------------------------------------------------------------------------------------------------


def test_masks_default_to_bool_for_padding_and_float_for_attention() -> None:
    assert parse_masks("src_key_padding_mask, tgt_mask") == {"tgt_mask": "float", "src_key_padding_mask": "bool"}


def test_masks_come_out_in_the_order_of_the_transformers_arguments() -> None:
    assert list(parse_masks(",".join(reversed(MASK_AXES)))) == list(MASK_AXES)


@pytest.mark.parametrize("name", MASK_AXES)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_every_mask_can_be_bool_or_float(name: str, kind: str) -> None:
    assert parse_masks(f"{name}:{kind}") == {name: kind}


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("mask", "there is no mask 'mask'", "src_mask, tgt_mask, memory_mask"),
        ("tgt_mask,:bool", "there is no mask ''", "tgt_mask"),
        ("tgt_mask:int", "tgt_mask cannot be 'int'", "bool, float, 3d"),
        ("src_key_padding_mask:3d", "src_key_padding_mask cannot be '3d'", "bool, float"),
        ("tgt_mask,tgt_mask:bool", "tgt_mask stands twice", "once"),
    ],
)
def test_masks_that_cannot_be_are_refused_with_what_can(text: str, message: str, hint: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        parse_masks(text)
    assert hint in caught.value.hint


@pytest.mark.parametrize("model", [translation(), couplet(), classification("sum")])
def test_a_model_on_ids_takes_no_choice_of_masks(model: Any) -> None:
    with pytest.raises(OptionError, match="bare MyTransformer"):
        graphs_of(model, "tgt_mask")


@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize("masks", ["", "tgt_mask:3d", "src_mask:bool,memory_key_padding_mask:float", EVERY_MASK])
def test_contracts_say_which_masks_make_them_again(masks: str, flexible: bool) -> None:
    model = MyTransformer(16, 2, 1, 1, 24)
    graphs = graphs_of(model, masks)
    contracts = [graph.contract for graph in graphs.values()]
    found = masks_of(contracts)
    assert parse_masks(found) == parse_masks(masks)
    assert [graph.contract for graph in graphs_of(model, found).values()] == contracts
    if flexible:  # in a file where all can be left out, nothing says which were asked for
        assert masks_of([graph.flexible for graph in graphs.values()]) == ""


# --- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_full_graph_holds_every_weight_and_the_halves_hold_them_all_between_them(kind: str) -> None:
    model = build(kind)
    graphs = graphs_of(model, KINDS[kind][1])
    held = {name: set(graph.weights()) for name, graph in graphs.items()}
    assert held["full"] == set(model.state_dict())
    if "decoder" in graphs:
        assert held["encoder"] | held["decoder"] == held["full"]
        shared = {name for name in held["full"] if name.startswith(("token_embedding.", "pos_embedding."))}
        assert held["encoder"] & held["decoder"] == shared
        assert all(".decoder." not in name for name in held["encoder"])
        assert all(".encoder." not in name for name in held["decoder"])
    else:
        assert held["full"] - held["encoder"] == {name for name in held["full"] if name.startswith("classifier.")}


def test_the_weights_of_a_graph_are_the_models_own_values() -> None:
    model = translation()
    state = model.state_dict()
    for name, tensor in graphs_of(model)["decoder"].weights().items():
        assert torch.equal(tensor, state[name])
        assert tensor.data_ptr() == state[name].data_ptr()


def test_a_graphs_module_computes_what_the_model_does() -> None:
    model = build("translation")
    src, tgt = torch.randint(0, 11, (3, 4)), torch.randint(0, 13, (3, 6))
    src_padding, tgt_padding = torch.rand(3, 4) < 0.3, torch.rand(3, 6) < 0.3
    graphs: dict[str, Graph] = graphs_of(model)
    with torch.no_grad():
        memory = graphs["encoder"].module(src, src_padding)
        assert torch.equal(memory, model.encode(src, src_padding))
        logits = graphs["decoder"].module(tgt, memory, tgt_padding, src_padding)
        assert torch.equal(logits, model.decode(tgt, memory, tgt_padding, src_padding))
        assert torch.equal(graphs["full"].module(src, tgt, src_padding, tgt_padding), logits)


@pytest.mark.parametrize("kind", KINDS)
def test_a_graphs_module_takes_the_contracts_inputs_by_name(kind: str) -> None:
    for graph in plain(graphs_of(build(kind), KINDS[kind][1])).values():
        arguments = list(inspect.signature(graph.module.forward).parameters)
        assert [name for name in arguments if name in {spec.name for spec in graph.contract.inputs}] == [
            spec.name for spec in graph.contract.inputs
        ]
        assert [spec.name for spec in graph.flexible.inputs] == arguments


def test_a_model_without_decoder_layers_has_an_encoder_to_export():
    assert list(graphs_of(MyTransformer(16, 2, 1, 0, 24))) == ["encoder"]
    assert list(graphs_of(MyTransformer(16, 2, 1, 1, 24))) == ["encoder", "decoder", "full"]
