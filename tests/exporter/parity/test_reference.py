"""References and their noise: the model does not change, the noise is realistic, the plan distinguishes inputs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from exported_models import KINDS, Exported, build, translation
from mytx.exporter.cases.plan import alike, make_plan
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.parity.compare import PASS, compare_case
from mytx.exporter.parity.reference import compute_references, jittered, measure_more, nudge


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32)


@pytest.mark.parametrize("kind", ["translation", "bare", "last pooling, silu"])
def test_the_model_is_bit_for_bit_what_it_was(kind: str) -> None:
    model = build(kind)
    before = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in model.state_dict().items()}
    parameters = {name: id(parameter) for name, parameter in model.named_parameters()}
    graph = graphs_of(model, KINDS[kind][1])["full"]
    compute_references(model, graph, make_plan(graph.contract)[:3])
    after = model.state_dict()
    assert list(after) == list(before)
    for name, (_, tensor) in before.items():
        assert after[name].dtype == tensor.dtype
        assert torch.equal(bits(after[name]), bits(tensor))
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == parameters
    assert not any(module.training for module in model.modules())


def test_the_model_is_put_back_when_a_case_fails() -> None:
    model = build("translation")
    before = copy.deepcopy(model.state_dict())
    graph = graphs_of(model)["full"]
    case = make_plan(graph.contract)[0]
    case.inputs["src"] = np.full((2, 7), 11)  # one more than the vocabulary has
    with pytest.raises(IndexError):
        compute_references(model, graph, [case])
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(bits(tensor), bits(before[name]))


def test_the_values_are_the_models_own_in_float64() -> None:
    model = build("translation")
    graph = graphs_of(model)["full"]
    plan = make_plan(graph.contract)[:4]
    references = compute_references(model, graph, plan)
    double = copy.deepcopy(model).double()
    for case, outputs in zip(plan, references, strict=True):
        assert list(outputs) == ["logits"]
        assert outputs["logits"].values.dtype == np.float64
        tensors = {name: torch.from_numpy(array) for name, array in case.inputs.items()}
        with torch.no_grad():
            assert np.array_equal(outputs["logits"].values, double(**tensors).numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_positive_small_and_covers_an_honest_float32_run(
    kind: str, exports: Callable[[str], Exported]
) -> None:
    exported = exports(kind)
    for name, graph in exported.graphs.items():
        for case, outputs in zip(exported.plan(name), exported.expected(name), strict=True):
            (reference,) = outputs.values()
            tensors = {name: torch.from_numpy(array) for name, array in case.inputs.items()}
            with torch.no_grad():
                honest = graph.module(**tensors).numpy()
            scale = np.abs(reference.values).max() if reference.scale is None else reference.scale
            assert 0 < reference.noise < 1e-5 * scale
            (output,) = graph.contract.outputs
            (comparison,) = compare_case(graph.contract, {output.name: honest}, outputs)
            if case.same_as is None:
                assert np.abs(honest - reference.values).max() <= reference.noise
                assert comparison.ratio <= 1
            else:  # the noise is that of the case that it must agree with
                assert comparison.verdict == PASS


def test_the_same_plan_gives_the_same_noise() -> None:
    model = build("translation")
    graph = graphs_of(model)["decoder"]
    plan = make_plan(graph.contract)[:3]
    first, second = (compute_references(model, graph, plan) for _ in range(2))
    assert [outputs["logits"].noise for outputs in first] == [outputs["logits"].noise for outputs in second]


@pytest.mark.parametrize("kind", KINDS)
def test_every_input_that_is_disturbed_moves_the_reference_by_far_more_than_noise(
    kind: str, exports: Callable[[str], Exported]
) -> None:
    """Else a graph that ignores the input would pass."""
    exported = exports(kind)
    for name, graph in exported.graphs.items():
        plan, expected = exported.plan(name), exported.expected(name)
        disturbed = [outputs for case, outputs in zip(plan, expected, strict=True) if case.group == "disturbed"]
        for words, outputs in zip(alike(graph.contract.inputs), disturbed, strict=True):
            for key, moved in outputs.items():
                base = expected[1][key]
                change = np.abs(moved.values - base.values).max()
                assert change > 100 * max(moved.noise, base.noise), f"{name}: {words}"


def test_threads_are_as_many_as_before() -> None:
    model = build("translation")
    graph = graphs_of(model)["encoder"]
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        compute_references(model, graph, make_plan(graph.contract)[:1])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# --- identities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["translation", "average pooling", "bare, every mask"])
def test_an_identity_has_the_reference_of_the_case_that_it_must_agree_with(
    kind: str, exports: Callable[[str], Exported]
) -> None:
    exported = exports(kind)
    for name in exported.graphs:
        plan, references = exported.plan(name), exported.expected(name)
        assert len(plan) == len(references)
        for case, outputs in zip(plan, references, strict=True):
            (found,) = outputs.values()
            if case.same_as is None:
                assert (found.positions, found.shape, found.scale) == (None, None, None)
                continue
            ((key, whole),) = references[case.same_as.case].items()
            assert found.values.tolist() == whole.values.ravel()[case.same_as.theirs[key]].tolist()
            assert found.positions is case.same_as.ours[key]
            assert found.full_shape == case.same_as.shapes[key]
            assert (found.noise, found.scale) == (whole.noise, float(np.abs(whole.values).max()))


def test_identities_cost_no_run_of_the_model(translation: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, plan = translation.graphs["encoder"], translation.plan("encoder")
    asked: list[int] = []
    forward = type(graph.module).forward

    def counted(module: Any, src: Tensor, *masks: Tensor, **named: Tensor) -> Tensor:
        asked.append(src.shape[0])
        return forward(module, src, *masks, **named)

    monkeypatch.setattr(type(graph.module), "forward", counted)
    compute_references(translation.model, graph, plan)
    whole = len(asked)
    asked.clear()
    compute_references(translation.model, graph, [case for case in plan if case.same_as is None])
    assert len(asked) == whole > 0


def test_more_runs_for_an_identity_are_more_runs_of_the_case_that_it_must_agree_with(translation: Exported) -> None:
    graph, plan = translation.graphs["encoder"], translation.plan("encoder")
    before = translation.expected("encoder")
    for index in [number for number, case in enumerate(plan) if case.group == "identities"][:4]:
        references = list(before)
        result = measure_more(translation.model, graph, plan, references, index)
        same = plan[index].same_as
        assert same is not None
        assert result is references[index]
        assert {number for number in range(len(plan)) if references[number] is not before[number]} == {
            index,
            same.case,
        }
        alone = measure_more(translation.model, graph, plan, list(before), same.case)
        assert result["memory"].noise == references[same.case]["memory"].noise == alone["memory"].noise
        assert result["memory"].noise >= before[index]["memory"].noise
        assert np.array_equal(result["memory"].values, before[index]["memory"].values)
        assert result["memory"].positions is before[index]["memory"].positions
        assert result["memory"].full_shape == before[index]["memory"].full_shape
        assert result["memory"].scale == before[index]["memory"].scale


# --- jitter ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(100_003,), (317, 101), (7, 11, 1301)])
def test_a_nudge_moves_about_half_of_the_values_by_one_ulp(shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 10.0**3
    before = tensor.clone()
    moved = nudge(tensor, torch.Generator().manual_seed(1))
    assert torch.equal(tensor, before)
    assert (moved.shape, moved.dtype) == (tensor.shape, torch.float32)
    steps = bits(moved) - bits(tensor)
    up, down = (steps == 1).float().mean().item(), (steps == -1).float().mean().item()
    assert set(steps.unique().tolist()) == {-1, 0, 1}
    assert up == pytest.approx(0.25, abs=0.01)
    assert down == pytest.approx(0.25, abs=0.01)


def test_a_nudge_moves_to_the_neighbouring_number_of_either_sign() -> None:
    numbers = torch.tensor([1.0, -1.0, 1e-30, -3.5, 2.0**100])
    tensor = torch.cat([numbers, torch.nextafter(numbers, torch.tensor(0.0))]).repeat(100)
    moved = nudge(tensor, torch.Generator().manual_seed(0)).numpy()
    before = tensor.numpy()
    for limit in (-np.inf, np.inf):
        assert (moved == np.nextafter(before, np.float32(limit))).mean() > 0.2
    neighbours = [np.nextafter(before, np.float32(limit)) for limit in (-np.inf, np.inf)]
    assert np.all((moved == before) | (moved == neighbours[0]) | (moved == neighbours[1]))


def test_a_nudge_leaves_infinity_and_nan() -> None:
    special = torch.tensor([float("inf"), float("-inf"), float("nan")]).repeat(100)
    assert torch.equal(bits(nudge(special, torch.Generator().manual_seed(0))), bits(special))


@pytest.mark.parametrize("beside", [[], [float("inf")], [float("-inf"), float("nan")]])
def test_a_nudge_takes_zero_to_the_number_next_to_it_and_keeps_its_sign(beside: list[float]) -> None:
    """A bias that is all zero rounds like any other: its sums must be nudged, too."""
    before = torch.tensor([0.0, -0.0, *beside]).repeat(200)
    moved = nudge(before, torch.Generator().manual_seed(0))
    least = float(np.nextafter(np.float32(0), np.float32(1)))
    for zero in (0.0, -0.0):
        same = (before == 0) & (torch.signbit(before) == (math.copysign(1, zero) < 0))
        found = {math.copysign(1, value) * abs(value) for value in moved[same].tolist()}
        assert found == {math.copysign(0.0, zero), math.copysign(least, zero)}
        assert torch.equal(torch.signbit(moved[same]), torch.signbit(before[same]))
        assert 0.3 < (moved[same] != 0).float().mean().item() < 0.7
    others = before != 0
    assert torch.equal(bits(moved[others]), bits(before[others]))


@pytest.mark.parametrize(
    "tensor", [torch.tensor(2.5), torch.ones(0), torch.ones(1), torch.ones(6, 4).t(), torch.ones(9)]
)
def test_a_nudge_takes_any_shape_and_stride(tensor: Tensor) -> None:
    moved = nudge(tensor, torch.Generator().manual_seed(0))
    assert moved.shape == tensor.shape
    assert ((moved - tensor).abs() <= 2.0**-22).all()


def test_a_nudge_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    tensor = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    first, again, other = (nudge(tensor, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("failing", [False, True])
def test_jitter_moves_the_named_weights_inside_the_block_alone(failing: bool) -> None:
    model = translation().eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    places = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    names = {"classification.weight", "pos_embedding.pe"}
    try:
        with jittered(model, names, torch.Generator().manual_seed(0)):
            inside = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            if failing:
                raise RuntimeError("in the block")
    except RuntimeError:
        assert failing
    assert {name for name, tensor in inside.items() if not torch.equal(tensor, before[name])} == names
    for name, tensor in model.state_dict().items():
        assert torch.equal(bits(tensor), bits(before[name]))
        assert tensor.data_ptr() == places[name]
