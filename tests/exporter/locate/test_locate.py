"""``locate`` names the module that introduces an error, and none that only passes it on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import GraphProto

import fault_interfaces
import fault_masks
import fault_values as faults
import planting
from exported_models import KINDS, Exported
from located_faults import BATCH_FROZEN, cases, plant, weight_times
from mytx.exporter.errors import BundleError
from mytx.exporter.formats.onnx.export import finish, save, to_onnx
from mytx.exporter.locate.places import Located, locate
from planting import Fault, bypass, insert, mask_input_ignored, mask_polarity_turned, node

DECODER = "my_transformer.decoder"
ENCODER = "my_transformer.encoder"


def located(fault: Fault, exported: Exported, name: str, folder: Path) -> Located:
    return locate(plant(fault, exported, name, folder), exported.graphs[name], cases(exported, name))


def both(*planted: Fault) -> Fault:
    def fault(graph: GraphProto) -> None:
        for one in planted:
            one(graph)

    return fault


def gelu_by_tanh(graph: GraphProto) -> None:
    node(graph, "Erf", "layers.0.activation").op_type = "Tanh"


def norm_dropped(graph: GraphProto) -> None:
    bypass(graph, node(graph, "LayerNormalization", "layers.0.norm1"))


def embedding_scale_of_half(part: str) -> Fault:
    def fault(graph: GraphProto) -> None:
        last = node(graph, "Mul", part)
        last.input[1] = planting.constant(graph, np.array(2, np.float32))

    return fault


# --- honest files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_honest_file_computes_what_the_model_computes(kind: str, exports: Callable[[str], Exported]) -> None:
    exported = exports(kind)
    for name, graph in exported.graphs.items():
        found = locate(exported.path(name), graph, cases(exported, name))
        assert found.introduced == ()
        assert found.passed_on == ()
        assert found.unmatched == ()
        assert found.compared > 20
        assert found.graph == name


@pytest.mark.parametrize("opset", [20, 23, 25])
@pytest.mark.parametrize("kind", ["bare, every mask", "norm first, gelu, no bias"])
def test_an_honest_file_of_another_opset_does_too(
    kind: str, opset: int, exports: Callable[[str], Exported], tmp_path: Path
) -> None:
    exported = exports(kind)
    graph = exported.graphs["encoder"]
    model = to_onnx(graph, opset)
    finish(model, graph.contract, {})
    save(model, tmp_path / "encoder.onnx")
    found = locate(tmp_path / "encoder.onnx", graph, cases(exported, "encoder"))
    assert (found.introduced, found.passed_on, found.unmatched) == ((), (), ())


def test_the_model_is_left_as_it_was(translation: Exported) -> None:
    before = {name: tensor.clone() for name, tensor in translation.model.state_dict().items()}
    locate(translation.path("decoder"), translation.graphs["decoder"], cases(translation, "decoder"))
    after = translation.model.state_dict()
    assert all(
        torch.equal(tensor, after[name]) and tensor.dtype == after[name].dtype for name, tensor in before.items()
    )
    assert not any(module._forward_hooks for module in translation.model.modules())


# --- one fault -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fault", "module", "op_type"),
    [
        ("decoder", faults.epsilon(1e-3), f"{DECODER}.layers.1.norm2", "LayerNormalization"),
        ("decoder", faults.epsilon(1e-12), f"{DECODER}.layers.1.norm2", "LayerNormalization"),
        ("decoder", faults.epsilon(1.2e-5), f"{DECODER}.layers.1.norm2", "LayerNormalization"),
        ("decoder", faults.attention_scale_by(1 + 1e-6), f"{DECODER}.layers.0.self_attn", "Reshape"),
        ("decoder", faults.softmax_over_queries, f"{DECODER}.layers.1.multihead_attn", "Reshape"),
        ("decoder", fault_interfaces.softmax_in_float16, f"{DECODER}.layers.1.multihead_attn", "Reshape"),
        ("decoder", fault_masks.dead_rows_not_set_to_zero, f"{DECODER}.layers.1.multihead_attn", "Reshape"),
        ("decoder", fault_masks.minus_infinity_is(-1e6), f"{DECODER}.layers.0.multihead_attn", "Reshape"),
        ("decoder", faults.heads_merged_in_another_order, f"{DECODER}.layers.0.self_attn", "Reshape"),
        ("decoder", BATCH_FROZEN, f"{DECODER}.layers.0.self_attn", "Reshape"),
        ("decoder", faults.embedding_not_scaled, "tgt_token_embedding", "Mul"),
        ("decoder", faults.positions_from_one, "pos_embedding", "Add"),
        ("decoder", faults.positions_end_early, "pos_embedding", "Add"),
        ("decoder", faults.activation("Tanh"), f"{DECODER}.layers.1.activation", "Tanh"),
        ("decoder", faults.residual_dropped, f"{DECODER}.layers.1", "LayerNormalization"),
        ("decoder", faults.output_scaled_by(1 + 1e-7), "", "Transpose"),
        ("decoder", fault_masks.causal_is("GreaterOrEqual"), "", "GreaterOrEqual"),
        ("decoder", fault_masks.causal_is("Less"), "", "Less"),
        ("decoder", fault_masks.causal_mask_dropped, "", "Greater"),
        ("decoder", fault_masks.causal_mask_of_the_traced_length, f"{DECODER}.layers.0.self_attn", "Add"),
        ("decoder", mask_polarity_turned("memory_key_padding_mask"), f"{DECODER}.layers.0", "Not"),
        ("decoder", mask_input_ignored("tgt_key_padding_mask"), f"{DECODER}.layers.0", "ConstantOfShape"),
        ("decoder", weight_times("layers.1.linear1.weight", 1.00001), f"{DECODER}.layers.1.linear1", "Add"),
        ("decoder", weight_times("layers.0.self_attn.k_proj.bias", 2), f"{DECODER}.layers.0.self_attn.k_proj", "Add"),
        ("decoder", weight_times("classification.weight", 1.001), "classification", "Add"),
        (
            "encoder",
            weight_times("src_token_embedding.embedding.weight", 1.1),
            "src_token_embedding.embedding",
            "Gather",
        ),
        ("encoder", weight_times("pos_embedding.pe", 1.001), "pos_embedding", "Add"),
        ("encoder", norm_dropped, f"{ENCODER}.layers.0", "Add"),
        ("full", weight_times("encoder.norm.bias", 1.01), f"{ENCODER}.norm", "LayerNormalization"),
        (
            "full",
            weight_times("decoder.layers.0.norm3.weight", 1.01),
            f"{DECODER}.layers.0.norm3",
            "LayerNormalization",
        ),
        ("full", embedding_scale_of_half("decoder/tgt_token_embedding"), "tgt_token_embedding", "Mul"),
    ],
)
def test_the_module_that_introduces_an_error_is_named(
    name: str, fault: Fault, module: str, op_type: str, translation: Exported, tmp_path: Path
) -> None:
    found = located(fault, translation, name, tmp_path)
    first = found.introduced[0]
    assert first.module == module
    assert f"({op_type})" in first.node
    assert first.error > first.allowed
    assert first.case.startswith("case ")
    assert {place.module for place in found.introduced} <= {module, *same_constants(module)}


def same_constants(module: str) -> set[str]:
    """The scale of attention and its minus infinity are one constant of the file: changed once, wrong in each."""
    kinds = ("self_attn", "multihead_attn") if module.endswith("_attn") else ()
    return {f"{DECODER}.layers.{layer}.{kind}" for layer in (0, 1) for kind in kinds}


def test_a_module_that_is_called_in_both_halves_is_told_apart(
    exports: Callable[[str], Exported], tmp_path: Path
) -> None:
    found = located(embedding_scale_of_half("decoder/token_embedding"), exports("couplet"), "full", tmp_path)
    (place,) = found.introduced
    assert place.module == "token_embedding"
    assert place.value.startswith("decoder/")


@pytest.mark.parametrize(
    ("kind", "fault", "module"),
    [
        ("norm first, gelu, no bias", gelu_by_tanh, f"{ENCODER}.layers.0.activation"),
        ("bare, every mask", weight_times("encoder.layers.0.self_attn.out_proj.weight", 1.01), "self_attn.out_proj"),
        ("last pooling, silu", weight_times("encoder.layers.0.norm2.weight", 1.01), "encoder.layers.0.norm2"),
    ],
)
def test_other_kinds_of_model_are_found_out_too(
    kind: str, fault: Fault, module: str, exports: Callable[[str], Exported], tmp_path: Path
) -> None:
    assert located(fault, exports(kind), "encoder", tmp_path).introduced[0].module.endswith(module)


def test_pooling_that_is_not_the_models_is_the_models_own_code(
    exports: Callable[[str], Exported], tmp_path: Path
) -> None:
    def counts_one_more(graph: GraphProto) -> None:
        last = next(found for found in graph.node if found.op_type == "ReduceSum")
        last.input[0] = insert(graph, last, "Add", [last.input[0], last.input[0]], "twice")

    places = located(counts_one_more, exports("average pooling"), "full", tmp_path).introduced
    assert [place.module for place in places] == [""]


# --- what is passed on -----------------------------------------------------------------------------------------------


def test_what_stands_behind_the_fault_passes_it_on(translation: Exported, tmp_path: Path) -> None:
    found = located(faults.epsilon(1e-3), translation, "decoder", tmp_path)
    (place,) = found.introduced
    layer = f"{DECODER}.layers.1"
    behind = ("linear1", "activation", "linear2", "norm3")
    assert found.passed_on == (*(f"{layer}.{name}" for name in behind), f"{DECODER}.norm", "classification")
    assert place.carried == pytest.approx(place.error, rel=1e-6)


def test_two_faults_are_both_found_and_the_second_by_its_own_error(translation: Exported, tmp_path: Path) -> None:
    late = faults.epsilon(1e-3)
    (alone,) = located(late, translation, "decoder", tmp_path).introduced
    early = weight_times("layers.0.linear1.weight", 1.1)
    found = located(both(early, late), translation, "decoder", tmp_path)
    assert [place.module for place in found.introduced] == [f"{DECODER}.layers.0.linear1", f"{DECODER}.layers.1.norm2"]
    assert found.introduced[1].error == pytest.approx(alone.error, rel=1e-6)
    assert found.introduced[1].carried > 2 * alone.error


def test_a_fault_that_cancels_out_is_found_where_it_is(translation: Exported, tmp_path: Path) -> None:
    """A key bias adds the same to all scores of a row, and softmax takes it away: no output can tell."""
    found = located(weight_times("layers.1.self_attn.k_proj.bias", 3), translation, "decoder", tmp_path)
    assert [place.module for place in found.introduced] == [f"{DECODER}.layers.1.self_attn.k_proj"]
    assert found.passed_on == ()


# --- files that are not ours -----------------------------------------------------------------------------------------


def test_where_the_names_are_lost_the_output_is_still_compared(translation: Exported, tmp_path: Path) -> None:
    def nameless(graph: GraphProto) -> None:
        for found in graph.node:
            found.name = ""

    found = located(nameless, translation, "decoder", tmp_path)
    assert (found.introduced, found.compared) == ((), 1)
    assert f"{DECODER}.layers.0.norm1" in found.unmatched
    found = located(both(faults.epsilon(1e-3), nameless), translation, "decoder", tmp_path)
    assert [(place.module, place.value) for place in found.introduced] == [("", "logits")]


def test_a_missing_output_is_a_place(translation: Exported, tmp_path: Path) -> None:
    def lost(graph: GraphProto) -> None:
        graph.output[0].name = next(found for found in graph.node if "logits" in found.output).input[0]

    found = located(lost, translation, "decoder", tmp_path)
    assert [(place.module, place.value) for place in found.introduced] == [("", "logits")]


def test_other_inputs_are_refused(translation: Exported, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="src"):
        locate(translation.path("encoder"), translation.graphs["decoder"], cases(translation, "decoder"))
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(BundleError, match="cannot be read"):
        locate(tmp_path / "bad.onnx", translation.graphs["decoder"], cases(translation, "decoder"))
