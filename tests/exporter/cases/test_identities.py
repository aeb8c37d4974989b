"""Identities: each graph is tested for those that it promises, at exactly the right positions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from exported_models import KINDS, build
from mytx.exporter.cases.identities import identities, sizes_of, whole_plan
from mytx.exporter.cases.plan import LEVELS, make_plan
from mytx.exporter.contracts.contract import CACHED, Axis, Contract, TensorSpec
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.transformer import MyTransformer
from plans import ALONE, CONTRACTS, FUTURE, PADDING, PROMISED, contracts_of, derived, tried

# --- which there are -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_graph_is_tried_for_each_identity_that_it_promises_and_no_other(kind: str, level: str) -> None:
    found = {contract.graph: tried(whole_plan(contract, level)) for contract in contracts_of(kind)}
    assert found == PROMISED[kind]


def test_cached_graphs_promise_that_a_sentence_is_what_it_is_alone_and_searches_nothing() -> None:
    graphs = graphs_of(build("translation"))
    found = {name: tried(whole_plan(graphs[name].contract)) for name in CACHED}
    assert found == {"step": {ALONE}, "prefill": {ALONE}, "greedy": set(), "generate": set()}


@pytest.mark.parametrize(
    ("masks", "full"),
    [
        ("", {ALONE}),
        ("tgt_mask", {FUTURE, ALONE}),
        ("src_key_padding_mask", {ALONE}),  # the decoder still looks at the padding of the memory
        ("memory_key_padding_mask", {ALONE}),  # the encoder still looks at the padding of the source
        ("src_key_padding_mask,memory_key_padding_mask", {PADDING, ALONE}),
        ("tgt_key_padding_mask", {PADDING, ALONE}),
    ],
)
def test_a_bare_transformer_promises_what_its_masks_hide(masks: str, full: set[str]) -> None:
    contract = graphs_of(MyTransformer(16, 2, 1, 1, 24), masks)["full"].contract
    assert tried(whole_plan(contract)) == full


def test_identities_stand_after_the_plan_and_are_numbered_on(contract: Contract) -> None:
    plan = make_plan(contract)
    whole = whole_plan(contract)
    assert [case.name for case in whole] == [f"{number:02d}" for number in range(len(whole))]
    assert [case.group for case in whole[: len(plan)]] == [case.group for case in plan]
    assert {case.group for case in whole[len(plan) :]} == {"identities"}
    for case in derived(whole):
        assert case.same_as is not None
        base = whole[case.same_as.case]
        assert base.group == "shapes"
        assert f"case {base.name}" in case.words
    assert all(case.same_as is None for case in plan)


def test_the_same_plan_gives_the_same_identities_and_another_seed_gives_others(contract: Contract) -> None:
    plan = make_plan(contract)
    first, again, other = identities(contract, plan), identities(contract, plan), identities(contract, plan, seed=1)
    for a, b in zip(first, again, strict=True):
        assert a.words == b.words
        assert all(np.array_equal(a.inputs[name], b.inputs[name]) for name in a.inputs)
    assert any(
        a.words != b.words or any(not np.array_equal(a.inputs[name], b.inputs[name]) for name in a.inputs)
        for a, b in zip(first, other, strict=True)
    )


def test_own_cases_come_last_and_are_left_as_they_are(contract: Contract) -> None:
    own = [replace(case, group="own", name="") for case in make_plan(contract, seed=9)[:2]]
    whole = whole_plan(contract, own=own)
    assert [case.group for case in whole[-3:]] == ["identities", "own", "own"]
    assert [case.name for case in whole[-2:]] == [f"{len(whole) - 2:02d}", f"{len(whole) - 1:02d}"]
    assert all(
        case.same_as is None and case.inputs is given.inputs for case, given in zip(whole[-2:], own, strict=True)
    )


def test_slow_runtimes_are_asked_for_each_identity_too(contract: Contract) -> None:
    plan = whole_plan(contract)
    for which in tried(plan):
        assert any(case.small for case in derived(plan, which))


# --- at which places -------------------------------------------------------------------------------------------------


def hidden(mask: np.ndarray) -> np.ndarray:
    return mask if mask.dtype == bool else np.isneginf(mask)


def places(spec: TensorSpec, shape: tuple[int, ...]) -> Iterator[tuple[int, int | None, str, tuple[int, ...]]]:
    """For each element of an array: its sentence, its position, the axis of that, its index."""
    names = [axis.name if isinstance(axis, Axis) else "" for axis in spec.axes]
    (length,) = [index for index, name in enumerate(names) if name not in ("", "batch")] or [None]
    for index in itertools.product(*map(range, shape)):
        position, axis = (None, "") if length is None else (index[length], names[length])
        yield index[names.index("batch")], position, axis, index


def test_behind_padding_all_hidden_content_is_another_and_all_else_is_compared(contract: Contract) -> None:
    plan = whole_plan(contract)
    for case in derived(plan, PADDING):
        assert case.same_as is not None
        base = plan[case.same_as.case]
        moved: set[tuple[str, int, int]] = set()  # axis, sentence, position
        for spec in contract.inputs:
            before, after = base.inputs[spec.name], case.inputs[spec.name]
            if spec.hidden_by:
                covered = np.logical_and.reduce([hidden(base.inputs[name]) for name in spec.hidden_by])
                if covered.all():
                    continue
                for sentence, position, axis, index in places(spec, before.shape):
                    assert position is not None
                    assert (before[index] != after[index]) == covered[sentence, position]
                    if covered[sentence, position]:
                        moved.add((axis, sentence, position))
            else:
                assert np.array_equal(before, after)
        assert moved
        for spec in contract.outputs:
            shape = case.same_as.shapes[spec.name]
            expected = [
                int(np.ravel_multi_index(index, shape))
                for sentence, position, axis, index in places(spec, shape)
                if position is None or (axis, sentence, position) not in moved
            ]
            assert shape == spec.shape(sizes_of(contract, base))
            assert case.same_as.ours[spec.name].tolist() == case.same_as.theirs[spec.name].tolist() == expected


def test_the_future_is_another_and_all_before_it_is_compared(contract: Contract) -> None:
    plan = whole_plan(contract)
    for case in derived(plan, FUTURE):
        assert case.same_as is not None
        base = plan[case.same_as.case]
        (spec,) = [spec for spec in contract.inputs if spec.future]
        middle = int(case.words.rpartition(" ")[2])
        assert 0 < middle < sizes_of(contract, base)["target"] - 1
        for other in contract.inputs:
            before, after = base.inputs[other.name], case.inputs[other.name]
            if other is not spec:
                assert np.array_equal(before, after)
                continue
            for _, position, axis, index in places(spec, before.shape):
                assert position is not None
                assert axis == "target"
                assert (before[index] != after[index]) == (position > middle)
        for output in contract.outputs:
            shape = case.same_as.shapes[output.name]
            expected = [
                int(np.ravel_multi_index(index, shape))
                for _, position, _, index in places(output, shape)
                if position is not None and position <= middle
            ]
            assert 0 < len(expected) < np.prod(shape)
            assert case.same_as.ours[output.name].tolist() == case.same_as.theirs[output.name].tolist() == expected


def test_a_masks_future_is_tried_only_where_the_mask_is_causal() -> None:
    for name in ("decoder", "full"):
        contract = CONTRACTS[f"bare, every mask: {name}"]
        for case in derived(whole_plan(contract), FUTURE):
            mask = hidden(case.inputs["tgt_mask"])
            length = mask.shape[-1]
            assert mask[..., np.triu(np.ones((length, length), bool), 1)].all()


def test_a_sentence_alone_is_the_row_of_its_batch_without_the_padding_on_its_right(contract: Contract) -> None:
    plan = whole_plan(contract)
    for case in derived(plan, ALONE):
        assert case.same_as is not None
        base = plan[case.same_as.case]
        row = int(case.words.split()[1])
        wide, narrow = sizes_of(contract, base), sizes_of(contract, case)
        assert narrow["batch"] == 1 < wide["batch"]
        for spec in contract.inputs:
            part = base.inputs[spec.name]
            for dim, axis in enumerate(spec.axes):
                if isinstance(axis, Axis):
                    first = row * axis.times if axis.name == "batch" else 0
                    part = part.take(range(first, first + narrow[axis.name] * axis.times), dim)
            assert np.array_equal(case.inputs[spec.name], part, equal_nan=True)
            assert case.inputs[spec.name].flags.c_contiguous
            content = [other for other in contract.inputs if other.role in ("ids", "values")]
            if spec.role == "padding":  # what was cut off was padding, and nothing before it could go
                axis = next(axis for axis in spec.axes if isinstance(axis, Axis) and axis.name != "batch")
                cut = hidden(base.inputs[spec.name])[row, narrow[axis.name] :]
                assert cut.all()
                there = [other for other in content if axis in other.axes]
                if narrow[axis.name] < wide[axis.name]:
                    assert all(other.hidden_by for other in there)
        for spec in contract.outputs:
            small, large = case.same_as.shapes[spec.name], spec.shape(wide)
            assert small == spec.shape(narrow)
            assert case.same_as.ours[spec.name].tolist() == list(range(int(np.prod(small))))
            batch = next(dim for dim, axis in enumerate(spec.axes) if isinstance(axis, Axis) and axis.name == "batch")
            theirs = [
                int(np.ravel_multi_index((*index[:batch], row, *index[batch + 1 :]), large))
                for *_, index in places(spec, small)
            ]
            assert case.same_as.theirs[spec.name].tolist() == theirs


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "upstream pooling"])
def test_some_sentence_is_shorter_alone_than_in_its_batch(kind: str) -> None:
    for contract in contracts_of(kind):
        assert any(shorter(contract))


def test_pooling_over_padding_cuts_no_padding_off() -> None:
    """There the sum is over all positions: what is cut off is missing from it."""
    contract = CONTRACTS["upstream pooling: full"]
    assert not any(shorter(contract))
    assert any(case.inputs["src_key_padding_mask"].any() for case in derived(whole_plan(contract), ALONE))


def shorter(contract: Contract) -> Iterator[bool]:
    plan = whole_plan(contract)
    for case in derived(plan, ALONE):
        assert case.same_as is not None
        lengths = [sizes_of(contract, found) for found in (plan[case.same_as.case], case)]
        yield any(lengths[1][axis] < size for axis, size in lengths[0].items() if axis != "batch")
