"""Contracts: what they say, and that JSON keeps it."""

from __future__ import annotations

import json

import pytest
from exported_models import KINDS, build

from mytx.exporter.contract import Axis, Contract, TensorSpec
from mytx.exporter.graphs import graphs_of

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


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_at_export_are_at_least_two_and_all_different(kind: str) -> None:
    """Else torch.export takes one dimension for another, or for a constant."""
    for graph in graphs_of(build(kind), KINDS[kind][1]).values():
        traced = [axis.traced for axis in graph.contract.axes.values()]
        assert min(traced) >= 2
        assert len(set(traced)) == len(traced)
