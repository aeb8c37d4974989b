"""A traced program holds only the weights of its graph, and the model does not change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from exported_models import KINDS, Exported, build
from mytx.exporter import ExportError
from mytx.exporter.formats.program import export_program
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.graphs.parameters import pruned
from mytx.exporter.quiet import quiet


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.missing: nn.Module | None = None
        self.register_buffer("table", torch.zeros(3))


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Inner()
        self.encoder_extra = nn.Linear(2, 2)
        self.decoder = Inner()
        self.head = nn.Linear(4, 3)
        self.bias = nn.Parameter(torch.zeros(1))


def names(module: nn.Module) -> set[str]:
    return set(module.state_dict())


# --- pruned ----------------------------------------------------------------------------------------------------------


def test_what_is_outside_of_the_scopes_is_dropped_and_the_rest_is_shared() -> None:
    model = Outer()
    before, modules = names(model), dict(model.named_modules())
    kept = pruned(model, ("encoder.", "head."))
    assert names(kept) == {name for name in before if name.startswith(("encoder.", "head."))} | {"bias"}
    own = dict(model.named_parameters())
    assert all(parameter is own[name] for name, parameter in kept.named_parameters())
    assert dict(kept.named_buffers())["encoder.table"] is dict(model.named_buffers())["encoder.table"]
    assert kept is not model
    assert names(model) == before
    assert dict(model.named_modules()) == modules


def test_a_scope_deep_inside_keeps_the_way_there() -> None:
    model = Outer()
    kept = pruned(model, ("encoder.layers.1.",))
    assert {name for name in names(kept) if name.startswith("encoder.")} == {
        "encoder.layers.1.weight",
        "encoder.layers.1.bias",
        "encoder.table",
    }
    assert not any(name.startswith(("decoder.", "head.", "encoder_extra.")) for name in names(kept))
    assert kept.get_submodule("encoder.layers.1") is model.encoder.layers[1]
    assert len(model.encoder.layers) == 2


def test_a_name_that_only_begins_alike_is_not_in_the_scope() -> None:
    assert not any(name.startswith("encoder_extra") for name in names(pruned(Outer(), ("encoder.",))))


def test_no_scopes_keep_the_model_itself() -> None:
    model = Outer()
    assert pruned(model, ()) is model


@pytest.mark.parametrize("kind", KINDS)
def test_a_pruned_model_holds_the_weights_of_its_graph_and_no_others(kind: str) -> None:
    model = build(kind)
    before = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in model.state_dict().items()}
    for graph in graphs_of(model, KINDS[kind][1]).values():
        kept = pruned(model, graph.scopes)
        unread = {name for name in names(kept) if any(part in name for part in graph.without)}
        assert names(kept) - unread == set(graph.weights())
        assert all(tensor.data_ptr() == before[name][0] for name, tensor in kept.state_dict().items())
    assert set(model.state_dict()) == set(before)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name][1])


# --- export_program --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["translation", "average pooling", "bare, every mask"])
def test_a_program_takes_its_inputs_by_name_and_holds_its_own_weights(
    kind: str, exports: Callable[[str], Exported]
) -> None:
    exported = exports(kind)
    for name, graph in exported.graphs.items():
        with quiet():
            program = export_program(graph)
        assert {key.removeprefix("model.") for key in program.state_dict} == set(graph.weights())
        case = exported.plan(name)[4]
        given = {key: torch.from_numpy(array) for key, array in case.inputs.items()}
        (expected,) = exported.expected(name)[4].values()
        with torch.no_grad():
            found = program.module()(**given).numpy()
        assert abs(found - expected.values).max() <= 4 * expected.noise
    assert set(graph.module.model.state_dict()) == set(exported.model.state_dict())


def test_a_graph_that_cannot_be_traced_is_an_error_in_one_line(translation: Exported) -> None:
    graph = translation.graphs["encoder"]

    class Broken(type(graph.module)):  # type: ignore[misc]
        def forward(self, src, src_key_padding_mask):
            if src.sum() > 0:  # depends on the values
                return src
            return src_key_padding_mask

    broken = type(graph)(graph.contract, Broken(translation.model), graph.scopes)
    with quiet(), pytest.raises(ExportError, match="could not export the encoder graph") as caught:
        export_program(broken)
    assert "\n" not in caught.value.message
    assert "-v" in caught.value.hint
