"""The reference and its noise: the model is untouched, the noise is honest, the plan tells inputs apart."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from exported_models import KINDS, Exported, build, translation
from torch import Tensor

from mytx.exporter.compare import compare_case
from mytx.exporter.graphs import graphs_of
from mytx.exporter.plan import make_plan
from mytx.exporter.reference import compute_references, jittered, nudge


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
            tensors = [torch.from_numpy(case.inputs[spec.name]) for spec in graph.contract.inputs]
            with torch.no_grad():
                honest = graph.module(*tensors).numpy()
            assert 0 < reference.noise < 1e-5 * np.abs(reference.values).max()
            assert np.abs(honest - reference.values).max() <= reference.noise
            (output,) = graph.contract.outputs
            (comparison,) = compare_case(graph.contract, case, {output.name: honest}, outputs)
            assert comparison.ratio <= 1


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
        expected = exported.expected(name)
        count = len(graph.contract.inputs)
        for spec, outputs in zip(graph.contract.inputs, expected[-count:], strict=True):
            for key, moved in outputs.items():
                base = expected[1][key]
                change = np.abs(moved.values - base.values).max()
                assert change > 100 * max(moved.noise, base.noise), f"{name}: {spec.name}"


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
    tensor = torch.tensor([1.0, -1.0, 1e-30, -3.5, 2.0**100]).repeat(200)
    moved = nudge(tensor, torch.Generator().manual_seed(0)).numpy()
    before = tensor.numpy()
    for limit in (-np.inf, np.inf):
        assert (moved == np.nextafter(before, np.float32(limit))).mean() > 0.2
    neighbours = [np.nextafter(before, np.float32(limit)) for limit in (-np.inf, np.inf)]
    assert np.all((moved == before) | (moved == neighbours[0]) | (moved == neighbours[1]))


def test_a_nudge_leaves_zero_infinity_and_nan() -> None:
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan")]).repeat(100)
    assert torch.equal(bits(nudge(special, torch.Generator().manual_seed(0))), bits(special))


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
