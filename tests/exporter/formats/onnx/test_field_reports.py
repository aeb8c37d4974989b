"""Failures that others reported when they exported a Transformer do not happen here: public issues, by kind.

Every graph is traced at source 7, target 5 and batch 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from exported_models import Exported, Exports
from mytx.exporter.cases.case import Array, Case
from mytx.exporter.cases.plan import alike, fill
from mytx.exporter.contracts.contract import Contract
from mytx.exporter.parity.compare import PASS, Expected, compare_case, compare_values
from mytx.exporter.runtimes.onnxruntime import LEVELS, OnnxRuntime, RuntimeOptions

KINDS = ["translation", "bare, every mask", "norm first, gelu, no bias"]


def random_case(
    contract: Contract, seed: int = 0, padding: str = "none", attention: str = "none", **sizes: int
) -> Case:
    """Inputs of the sizes asked for."""
    rng = np.random.default_rng(seed)
    inputs = {spec.name: fill(spec, sizes, padding, attention, rng) for spec in contract.inputs}
    return Case(str(sizes), inputs, f"{sizes}, {padding}, {attention}")


def assert_equal_to_pytorch(exported: Exported, name: str, cases: list[Case], level: str = "all") -> None:
    """Within the budget, in onnxruntime."""
    runtime = OnnxRuntime.open(exported.path(name), RuntimeOptions(level=level))
    for case, expected in zip(cases, exported.references(name, cases), strict=True):
        for result in compare_case(exported.contract(name), runtime.run(case.inputs), expected):
            assert result.verdict == PASS, f"{case.words}: {result.reason}"
            assert result.elements > 0


def run(exported: Exported, name: str, inputs: dict[str, Array]) -> Array:
    (output,) = OnnxRuntime.open(exported.path(name)).run(inputs).values()
    return output


# --- shapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 5])
def test_any_length_and_batch_runs_and_is_right(kind: str, batch: int, exports: Exports) -> None:
    """pytorch#110347, #117209, #99701, #122321, #157621, #135691, #110255; optimum#2320."""
    exported = exports(kind)
    for name in exported.graphs:
        contract = exported.contract(name)
        lengths = [(1, 1), (1, 31), (31, 1), (3, 3), (3, 31), (31, 3), (12, 11)]
        cases = [
            random_case(contract, padding="right", attention="random", batch=batch, source=source, target=target)
            for source, target in lengths
        ]
        assert_equal_to_pytorch(exported, name, cases)


def test_every_position_that_there_is_can_be_used(translation: Exported) -> None:
    """64 positions, one more is refused by the runtime, not answered with something."""
    for name in translation.graphs:
        contract = translation.contract(name)
        assert_equal_to_pytorch(translation, name, [random_case(contract, batch=1, source=64, target=64)])
        too_long = random_case(contract, batch=2, source=65, target=65)
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            run(translation, name, too_long.inputs)


@pytest.mark.parametrize("length", [4, 6, 7, 8, 20])
def test_masks_of_lengths_around_the_traced_one_hide_what_they_should(length: int, translation: Exported) -> None:
    """espnet_onnx#95; fairseq#4026: the model ran at other lengths before it was exported, its causal mask is new."""
    for padding in ("right", "left", "holes"):
        case = random_case(translation.contract("full"), padding=padding, batch=3, source=length, target=length + 1)
        assert_equal_to_pytorch(translation, "full", [case])


def test_the_output_keeps_columns_that_are_padding_in_every_sentence(translation: Exported) -> None:
    """pytorch#97111: the length of the output is that of the input."""
    case = random_case(translation.contract("encoder"), batch=3, source=9)
    case.inputs["src_key_padding_mask"][:, 5:] = True
    assert run(translation, "encoder", case.inputs).shape == (3, 9, 16)
    assert_equal_to_pytorch(translation, "encoder", [case])


# --- masks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("padding", ["right", "left", "holes", "whole row", "everything"])
def test_padding_on_any_side_is_right_at_every_optimisation_level(
    level: str, padding: str, translation: Exported
) -> None:
    """onnxruntime#18945: a fusion that takes padding to be on the right."""
    for name in translation.graphs:
        case = random_case(translation.contract(name), padding=padding, batch=3, source=9, target=6)
        assert_equal_to_pytorch(translation, name, [case], level)


@pytest.mark.parametrize("kind", ["translation", "norm first, gelu, no bias", "couplet"])
@pytest.mark.parametrize("padding", ["right", "left", "holes"])
@pytest.mark.parametrize("seed", range(3))
def test_what_stands_behind_padding_changes_no_real_position(
    kind: str, padding: str, seed: int, exports: Exports
) -> None:
    exported = exports(kind)
    case = random_case(exported.contract("full"), seed, padding, batch=4, source=9, target=6)
    other = dict(case.inputs)
    rng = np.random.default_rng(100 + seed)
    for side, limit in (("src", exported.model.config.src_vocab_size), ("tgt", exported.model.config.tgt_vocab_size)):
        hidden = case.inputs[f"{side}_key_padding_mask"].astype(bool)
        assert hidden.any()
        garbage = rng.integers(1, limit, hidden.shape)
        other[side] = np.where(hidden, (case.inputs[side].astype(np.int64) + garbage) % limit, case.inputs[side])
        assert (other[side] != case.inputs[side]).any()
    before, after = (run(exported, "full", inputs) for inputs in (case.inputs, other))
    real = ~case.inputs["tgt_key_padding_mask"].astype(bool)
    assert np.array_equal(before[real], after[real])
    assert not np.array_equal(before, after)  # at the padding itself it does


@pytest.mark.parametrize("kind", ["average pooling", "last pooling, silu"])
def test_what_stands_behind_padding_changes_no_class(kind: str, exports: Exports) -> None:
    exported = exports(kind)
    case = random_case(exported.contract("full"), padding="right", batch=4, source=9)
    hidden = case.inputs["src_key_padding_mask"].astype(bool)
    assert hidden.any()
    other = {**case.inputs, "src": np.where(hidden, (case.inputs["src"].astype(np.int64) + 1) % 11, case.inputs["src"])}
    assert np.array_equal(run(exported, "full", case.inputs), run(exported, "full", other))
    moved = {**case.inputs, "src": (case.inputs["src"].astype(np.int64) + 1) % 11}
    assert not np.array_equal(run(exported, "full", case.inputs), run(exported, "full", moved))


@pytest.mark.parametrize("kind", ["translation", "norm first, gelu, no bias", "couplet"])
@pytest.mark.parametrize("known", [1, 4, 8])
def test_the_future_changes_nothing_before_it(kind: str, known: int, exports: Exports) -> None:
    exported = exports(kind)
    case = random_case(exported.contract("full"), padding="left", batch=3, source=5, target=9)
    case.inputs["tgt_key_padding_mask"][:] = False
    ids = case.inputs["tgt"].astype(np.int64)
    later = np.where(np.arange(9) >= known, (ids + 1) % 13, ids)
    before, after = (run(exported, "full", {**case.inputs, "tgt": tgt}) for tgt in (ids, later))
    assert np.array_equal(before[:, :known], after[:, :known])
    assert (before[:, known:] != after[:, known:]).any(-1).all()


def test_a_source_that_is_all_padding_is_finite_and_pytorchs(translation: Exported) -> None:
    """onnxscript#2479, pytorch#41508: NaN in one place, zero in another."""
    for name in translation.graphs:
        case = random_case(translation.contract(name), batch=3, source=5, target=4)
        for spec in translation.contract(name).inputs:
            if spec.role == "padding":
                case.inputs[spec.name][1] = True
        assert np.isfinite(run(translation, name, case.inputs)).all()
        assert_equal_to_pytorch(translation, name, [case])


def test_a_small_float_mask_matters(exports: Exports) -> None:
    """pytorch#107084: an additive mask that is treated as boolean."""
    exported = exports("bare, every mask")
    case = random_case(exported.contract("full"), batch=3, source=5, target=4)
    for name in ("tgt_mask", "memory_mask", "src_key_padding_mask", "memory_key_padding_mask"):
        mask = case.inputs[name]
        assert not mask.any()
        slope = np.linspace(0, 0.1, mask.shape[-1], dtype=np.float32)
        small = Case("small", {**case.inputs, name: mask + slope}, name)
        moved = run(exported, "full", small.inputs) - run(exported, "full", case.inputs)
        assert np.abs(moved).max() > 1e-4
        assert_equal_to_pytorch(exported, "full", [small])


@pytest.mark.parametrize("kind", KINDS)
def test_every_declared_input_is_in_the_file_and_moves_the_output(kind: str, exports: Exports) -> None:
    """pytorch#104949, #44299; fastT5#7: an input that is dropped silently."""
    exported = exports(kind)
    for name in exported.graphs:
        contract, plan = exported.contract(name), exported.plan(name)
        disturbed = [case for case in plan if case.group == "disturbed"]
        runtime = OnnxRuntime.open(exported.path(name))
        assert list(runtime.describe().inputs) == [spec.name for spec in contract.inputs]
        (before,) = runtime.run(plan[1].inputs).values()
        for words, case in zip(alike(contract.inputs), disturbed, strict=True):
            (after,) = runtime.run(case.inputs).values()
            assert np.abs(after - before).max() > 1e-3, words


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("src_key_padding_mask", lambda mask: mask.astype(np.float32)),
        ("src_key_padding_mask", lambda mask: mask.astype(np.int64)),
        ("src_key_padding_mask", lambda mask: mask[:, :-1]),
        ("src_key_padding_mask", lambda mask: mask.T),
        ("src", lambda ids: ids.astype(np.int32)),
        ("src", lambda ids: ids[0]),
        ("src", lambda ids: ids + 11),
    ],
)
def test_an_input_of_another_dtype_shape_or_range_is_refused(
    name: str, change: Callable[[Array], Array], translation: Exported
) -> None:
    """transformers#16538, #15575: it must not be taken for something else."""
    case = random_case(translation.contract("encoder"), batch=2, source=5)
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        run(translation, "encoder", {**case.inputs, name: change(case.inputs[name])})


# --- identities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["translation", "couplet", "norm first, gelu, no bias", "bare"])
@pytest.mark.parametrize(("source", "target", "batch"), [(1, 3, 1), (9, 4, 3), (5, 31, 5)])
def test_full_is_the_decoder_after_the_encoder(
    kind: str, source: int, target: int, batch: int, exports: Exports
) -> None:
    exported = exports(kind)
    case = random_case(
        exported.contract("full"), padding="right", attention="causal", batch=batch, source=source, target=target
    )
    whole = run(exported, "full", case.inputs)
    given = {**case.inputs}
    memory = run(exported, "encoder", pick(exported.contract("encoder"), given))
    given |= {"memory": memory}
    given.setdefault("memory_key_padding_mask", given["src_key_padding_mask"])
    chained = run(exported, "decoder", pick(exported.contract("decoder"), given))
    assert_within_budget(exported, case, whole, chained)


def pick(contract: Contract, given: dict[str, Any]) -> dict[str, Array]:
    return {spec.name: given[spec.name] for spec in contract.inputs}


def assert_within_budget(exported: Exported, case: Case, first: Array, second: Array) -> None:
    """Two ways to the same output differ by no more than the rule allows."""
    (expected,) = exported.references("full", [case])[0].values()
    result = compare_values("output", second, Expected(first.astype(np.float64), expected.noise))
    assert result.verdict == PASS, result.reason


@pytest.mark.parametrize("kind", ["translation", "couplet", "norm first, gelu, no bias", "average pooling"])
@pytest.mark.parametrize("padding", ["none", "right", "holes"])
def test_a_batch_is_its_sentences_one_at_a_time(kind: str, padding: str, exports: Exports) -> None:
    exported = exports(kind)
    case = random_case(exported.contract("full"), padding=padding, batch=5, source=9, target=6)
    together = run(exported, "full", case.inputs)
    alone = [run(exported, "full", {name: array[i : i + 1] for name, array in case.inputs.items()}) for i in range(5)]
    assert_within_budget(exported, case, together, np.concatenate(alone))


def test_a_sentence_is_the_same_with_padding_and_without(translation: Exported) -> None:
    case = random_case(translation.contract("full"), batch=2, source=6, target=4)
    short = run(translation, "full", case.inputs)
    padded = {
        name: np.pad(array, ((0, 0), (0, 7)), constant_values=array.dtype == bool)
        for name, array in case.inputs.items()
    }
    assert_within_budget(translation, case, short, run(translation, "full", padded)[:, :4])
