"""Contracts: what they contain, and that JSON keeps it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from exported_models import KINDS, build
from mytx.exporter.contracts.contract import Axis, Contract, TensorSpec
from mytx.exporter.graphs.model_graphs import graphs_of

BATCH = Axis("batch", traced=2)
SOURCE = Axis("source", traced=7, maximum=64)
HEADS = Axis("batch", traced=2, times=8)


@pytest.mark.parametrize("kind", KINDS)
def test_json_keeps_everything_that_a_contract_says(kind: str) -> None:
    for graph in graphs_of(build(kind), KINDS[kind][1]).values():
        contract = graph.contract
        read = Contract.from_dict(json.loads(json.dumps(contract.to_dict(), allow_nan=False)))
        assert read == contract
        assert read.to_dict() == contract.to_dict()
        assert hash(read.inputs) == hash(contract.inputs)


def test_json_keeps_what_differs_from_the_defaults() -> None:
    spec = TensorSpec("mask", "float32", (HEADS, SOURCE, 5), "words", "attention", 3)
    contract = Contract("encoder", (spec,), (), "sequence first", {"pad": 4})
    read = Contract.from_dict(json.loads(json.dumps(contract.to_dict())))
    assert read.inputs[0].axes == (Axis("batch", 1, 2, None, 8), Axis("source", 1, 7, 64, 1), 5)
    assert read == contract


@pytest.mark.parametrize("other", [("graph", "full"), ("layout", "batch first"), ("ids", {"pad": 1})])
def test_contracts_that_differ_in_one_field_are_not_equal(other: tuple[str, object]) -> None:
    contract = Contract("encoder", (), (), "sequence first", {"pad": 0})
    assert Contract.from_dict({**contract.to_dict(), other[0]: other[1]}) != contract


def test_labels_name_what_varies_and_number_what_does_not() -> None:
    assert TensorSpec("x", "float32", (SOURCE, BATCH, 16)).labels == ("source", "batch", 16)
    assert TensorSpec("mask", "bool", (HEADS, SOURCE, SOURCE)).labels == ("8*batch", "source", "source")


@pytest.mark.parametrize(("batch", "source"), [(1, 1), (3, 31), (5, 2)])
def test_a_shape_has_each_axis_at_its_length_and_times(batch: int, source: int) -> None:
    sizes = {"batch": batch, "source": source, "unused": 99}
    assert TensorSpec("x", "float32", (SOURCE, BATCH, 16)).shape(sizes) == (source, batch, 16)
    assert TensorSpec("mask", "bool", (HEADS, SOURCE, SOURCE)).shape(sizes) == (8 * batch, source, source)


def test_axes_are_those_of_the_inputs_by_name() -> None:
    inputs = (TensorSpec("x", "float32", (SOURCE, BATCH, 16)), TensorSpec("mask", "bool", (HEADS, SOURCE)))
    output = TensorSpec("y", "float32", (Axis("target"), 16))
    contract = Contract("encoder", inputs, (output,), "sequence first")
    assert contract.axes == {"source": SOURCE, "batch": BATCH}
    assert list(contract.axes) == ["source", "batch"]


def test_an_input_is_found_by_its_name() -> None:
    first, second = TensorSpec("first", "bool", (BATCH,)), TensorSpec("second", "bool", (SOURCE,))
    contract = Contract("encoder", (first, second), (), "batch first")
    assert contract.input("second") is second
    with pytest.raises(StopIteration):
        contract.input("third")


def test_json_keeps_what_may_be_left_out_and_what_hides_what() -> None:
    spec = TensorSpec("x", "int64", (BATCH, SOURCE), optional=True, hidden_by=("a", "b"), future="inside")
    contract = Contract("encoder", (spec,), (), "batch first")
    (read,) = Contract.from_dict(json.loads(json.dumps(contract.to_dict()))).inputs
    assert (read.optional, read.hidden_by, read.future) == (True, ("a", "b"), "inside")
    assert read == spec


@pytest.mark.parametrize("kind", KINDS)
def test_a_lifted_contract_is_the_same_with_float64_for_float32(kind: str) -> None:
    for graph in graphs_of(build(kind), KINDS[kind][1]).values():
        lifted = graph.contract.lifted()
        specs = [*graph.contract.inputs, *graph.contract.outputs]
        raised = [*lifted.inputs, *lifted.outputs]
        assert {spec.dtype for spec in raised} <= {"float64", "int64", "bool"}
        assert lifted.outputs[0].dtype == ("int64" if graph.contract.searches else "float64")
        for before, after in zip(specs, raised, strict=True):
            dtype = "float64" if before.dtype == "float32" else before.dtype
            assert after == replace(before, dtype=dtype)
        assert replace(lifted, inputs=graph.contract.inputs, outputs=graph.contract.outputs) == graph.contract
        assert lifted.lifted() == lifted


@pytest.mark.parametrize("kind", KINDS)
def test_what_hides_an_input_is_another_input_of_the_graph(kind: str) -> None:
    for graph in graphs_of(build(kind), KINDS[kind][1]).values():
        contract = graph.contract
        names = [spec.name for spec in contract.inputs]
        for spec in contract.inputs:
            assert not spec.optional
            assert set(spec.hidden_by) <= set(names)
            assert {contract.input(name).role for name in spec.hidden_by} <= {"padding"}
            assert spec.future in ("", "inside", "tgt_mask")
            if spec.future not in ("", "inside"):
                assert contract.input(spec.future).role == "attention"
            if spec.role in ("padding", "attention"):
                assert (spec.hidden_by, spec.future) == ((), "")


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_at_export_are_at_least_two_and_all_different(kind: str) -> None:
    """Else torch.export takes one dimension for another, or for a constant."""
    for graph in graphs_of(build(kind), KINDS[kind][1]).values():
        traced = [axis.traced for axis in graph.contract.axes.values()]
        assert min(traced) >= 2
        assert len(set(traced)) == len(traced)
