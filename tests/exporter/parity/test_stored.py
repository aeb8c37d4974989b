"""Reference cases in a bundle: which are stored, and that reading gives what was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from exported_models import Exported
from mytx.exporter.cases.case import Case
from mytx.exporter.errors import BundleError
from mytx.exporter.parity.compare import Expected, compare_case
from mytx.exporter.parity.stored import POSITIONS, StoredCases, choose, read_stored, size_of, store, write_stored

LARGE = 10**9


def stored(exported: Exported, name: str, limit: int = LARGE) -> StoredCases:
    plan, expected = exported.plan(name), exported.expected(name)
    numbers = choose(plan, [size_of(exported.contract(name), case) for case in plan], limit)
    return store([plan[number] for number in numbers], [expected[number] for number in numbers])


@pytest.fixture
def read(tmp_path: Path) -> Callable[[dict[str, StoredCases]], dict[str, StoredCases]]:
    def write_and_read(graphs: dict[str, StoredCases]) -> dict[str, StoredCases]:
        write_stored(tmp_path / "reference.npz", graphs)
        return read_stored(tmp_path / "reference.npz")

    return write_and_read


@pytest.mark.parametrize("kind", ["translation", "average pooling", "bare, every mask"])
def test_what_is_written_is_read_back(
    kind: str, exports: Callable[[str], Exported], read: Callable[..., dict[str, StoredCases]]
) -> None:
    exported = exports(kind)
    before = {name: stored(exported, name) for name in exported.graphs}
    after = read(before)
    assert list(after) == list(before)
    for name, cases in before.items():
        assert {case.group for case in cases.plan} == {"shapes", "disturbed", "identities"}
        assert {case.small for case in cases.plan} == {True, False}
        for a, b in zip(cases.plan, after[name].plan, strict=True):
            assert (a.name, a.words, a.group, a.small) == (b.name, b.words, b.group, b.small)
            assert list(a.inputs) == list(b.inputs)
            for key, array in a.inputs.items():
                assert array.dtype == b.inputs[key].dtype
                assert np.array_equal(array, b.inputs[key], equal_nan=True)
        for a, b in zip(cases.expected, after[name].expected, strict=True):
            assert list(a) == list(b)
            for key, output in a.items():
                assert (output.noise, output.scale, output.full_shape) == (
                    b[key].noise,
                    b[key].scale,
                    b[key].full_shape,
                )
                assert np.array_equal(output.values, b[key].values)
                assert output.positions is not None
                assert b[key].positions is not None
                assert np.array_equal(output.positions, b[key].positions)


def test_an_identity_is_stored_with_the_values_of_the_case_that_it_must_agree_with(
    translation: Exported, read: Callable[..., dict[str, StoredCases]]
) -> None:
    cases = read({"full": stored(translation, "full")})["full"]
    plan, references = translation.plan("full"), translation.expected("full")
    numbers = [number for number, case in enumerate(plan) if case.group == "identities"]
    assert len(numbers) >= 9
    for number in numbers:
        same, (kept,) = plan[number].same_as, cases.expected[number].values()
        assert same is not None
        (whole,) = references[same.case].values()
        assert kept.positions is not None
        assert set(kept.positions.tolist()) <= set(same.ours["logits"].tolist())
        theirs = dict(zip(same.ours["logits"].tolist(), same.theirs["logits"].tolist(), strict=True))
        expected = [whole.values.ravel()[theirs[position]] for position in kept.positions.tolist()]
        assert kept.values.tolist() == expected
        assert kept.full_shape == same.shapes["logits"]
        assert (kept.noise, kept.scale) == (whole.noise, float(np.abs(whole.values).max()))


def test_an_honest_output_passes_what_is_stored_and_another_does_not(translation: Exported) -> None:
    cases = stored(translation, "full")
    contract = translation.contract("full")
    for number, expected in enumerate(cases.expected):
        (output,) = expected.values()
        assert 0 < output.values.size <= POSITIONS
        (reference,) = translation.expected("full")[number].values()
        if reference.positions is None:
            honest = reference.values.astype(np.float32)
            (result,) = compare_case(contract, {"logits": honest}, expected)
            assert (result.verdict, result.elements) == ("pass", output.values.size)
            (result,) = compare_case(contract, {"logits": honest + np.float32(0.01)}, expected)
            assert result.verdict == "fail"


@pytest.mark.parametrize("size", [1, POSITIONS, POSITIONS + 1, 5 * POSITIONS])
@pytest.mark.parametrize("identity", [False, True])
def test_of_a_large_output_a_few_positions_are_kept_with_the_scale_of_all(size: int, identity: bool) -> None:
    values = np.random.default_rng(size).standard_normal(size)
    whole = Expected(values.reshape(1, size), 0.5)
    if identity:  # every second position of an output twice as large
        whole = Expected(values, 0.5, np.arange(0, 2 * size, 2), (2, size), 7.0)
    ((kept,),) = (outputs.values() for outputs in store([Case("00", {}, "")], [{"y": whole}]).expected)
    assert kept.positions is not None
    assert kept.values.size == kept.positions.size == min(size, POSITIONS)
    assert (np.diff(kept.positions) > 0).all()
    assert kept.values.tolist() == [values[position // (2 if identity else 1)] for position in kept.positions]
    assert kept.full_shape == ((2, size) if identity else (1, size))
    assert kept.noise == 0.5
    assert kept.scale == (7.0 if identity else np.abs(values).max())


@pytest.mark.parametrize("name", ["step", "prefill", "decoder"])
def test_of_a_large_model_each_group_has_cases_too(name: str, translation: Exported) -> None:
    """With room for a fifth of them, as a model of the base size has."""
    everything = stored(translation, name, LARGE)
    cases = stored(translation, name, everything.nbytes // 5)
    assert {case.group for case in cases.plan} == {case.group for case in everything.plan}
    assert len(cases.plan) > len(everything.plan) / 5  # the small ones


@pytest.mark.parametrize("limit", [0, 5_000, 50_000, LARGE])
def test_no_more_is_kept_than_the_limit_allows(limit: int, translation: Exported) -> None:
    cases = stored(translation, "full", limit)
    size = sum(array.nbytes for case in cases.plan for array in case.inputs.values())
    size += sum(16 * output.values.size for outputs in cases.expected for output in outputs.values())
    assert size == cases.nbytes
    assert size <= limit or len(cases.plan) == 1  # nothing at all would prove nothing
    assert 1 <= len(cases.plan) == len(cases.expected)
    names = [case.name for case in translation.plan("full")]
    kept = [case.name for case in cases.plan]
    assert kept == [name for name in names if name in kept]
    assert len(kept) == {0: 1, LARGE: len(names)}.get(limit, len(kept))


def test_a_large_case_does_not_keep_small_ones_out() -> None:
    plan = [Case(name, {}, name) for name in "abc"]
    assert choose(plan, [240, 1_000_000, 240], 1000) == [0, 2]


@pytest.mark.parametrize("name", ["encoder", "prefill", "greedy", "generate"])
def test_the_size_of_a_case_is_known_before_the_model_runs_it(name: str, translation: Exported) -> None:
    plan, expected, contract = translation.plan(name), translation.expected(name), translation.contract(name)
    for case, outputs in zip(plan, expected, strict=True):
        known, true = size_of(contract, case), store([case], [outputs]).nbytes
        assert known >= true if contract.searches else known == true


def test_the_same_plan_is_thinned_to_the_same_positions(translation: Exported) -> None:
    first, again = stored(translation, "full"), stored(translation, "full")
    for a, b in zip(first.expected, again.expected, strict=True):
        assert a["logits"].positions is not None
        assert b["logits"].positions is not None
        assert np.array_equal(a["logits"].positions, b["logits"].positions)


def test_cases_that_are_not_there_or_damaged_are_refused(tmp_path: Path, translation: Exported) -> None:
    path = tmp_path / "reference.npz"
    with pytest.raises(BundleError, match="holds no reference cases"):
        read_stored(path)
    few = stored(translation, "encoder", 5000)
    write_stored(path, {"encoder": few})
    data = path.read_bytes()
    for broken in (b"", b"{}", data[:-50], data[: len(data) // 2]):
        path.write_bytes(broken)
        with pytest.raises(BundleError, match="is damaged") as caught:
            read_stored(path)
        assert caught.value.hint
    np.savez(path, index=np.frombuffer(b'{"encoder": [{"name": "00"}]}', np.uint8))
    with pytest.raises(BundleError, match="is damaged"):
        read_stored(path)


def test_own_cases_are_stored_like_the_others(
    translation: Exported, read: Callable[..., dict[str, StoredCases]]
) -> None:
    plan, expected = translation.plan("encoder")[:2], translation.expected("encoder")[:2]
    own = [plan[0], replace(plan[1], group="own", words="mine.npz, batch 2, source 7")]
    (_, found) = read({"encoder": store(own, expected)})["encoder"].plan
    assert (found.group, found.words) == ("own", "mine.npz, batch 2, source 7")
