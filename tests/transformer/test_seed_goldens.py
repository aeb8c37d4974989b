"""The model gives the seed's numbers, eager and scripted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

FORMS = ["eager", "scripted"]
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")


def runner(seed: Any, golden: str, dtype: torch.dtype, form: str) -> Callable[..., Any]:
    module = seed.module(golden, dtype) if form == "eager" else seed.scripted(golden, dtype)
    return lambda **inputs: outputs_of(module, inputs)


@pytest.mark.parametrize("form", FORMS)
def test_float64_equals_the_seed(seed: Any, golden: str, form: str, assert_close: Any) -> None:
    run = runner(seed, golden, torch.float64, form)
    expected = seed.outputs(golden, torch.float64)
    for _ in range(3):  # the second and third run of a script take its specialised code
        actual = run(**seed.inputs(golden, torch.float64))
        assert len(actual) == len(expected)
        for ours, theirs in zip(actual, expected, strict=True):
            assert_close(ours, theirs)


@pytest.mark.parametrize("form", FORMS)
def test_float32_is_within_the_budget_of_the_seeds_float64(seed: Any, golden: str, form: str) -> None:
    expected = seed.outputs(golden, torch.float64)
    actual = runner(seed, golden, torch.float32, form)(**seed.inputs(golden, torch.float32))
    assert len(actual) == len(expected)
    for ours, exact, noise in zip(actual, expected, noises(seed, golden), strict=True):
        assert ours.dtype == torch.float32
        budget = 4 * noise + 4 * torch.finfo(torch.float32).eps * exact.abs().max()
        assert (ours.double() - exact).abs().max() <= budget


def test_the_budget_is_small_against_the_values(seed: Any, golden: str) -> None:
    for exact, noise in zip(seed.outputs(golden, torch.float64), noises(seed, golden), strict=True):
        assert 0 < noise < 1e-5 * exact.abs().max()


def noises(seed: Any, golden: str) -> list[Tensor]:
    """What float32 costs, output by output: the seed's own error, or what moving weights and inputs by one ULP does.

    The seed's float32 run alone is sometimes lucky. The moved runs are in float64, so a fault that only float32 has
    cannot hide in its own noise.
    """
    exact = seed.outputs(golden, torch.float64)
    single = seed.outputs(golden, torch.float32)
    levels = [(a.double() - b).abs().max() for a, b in zip(single, exact, strict=True)]
    module = seed.module(golden, torch.float64)
    weights = {name: p.detach().clone() for name, p in module.named_parameters()}
    inputs = seed.inputs(golden, torch.float64)
    here = outputs_of(module, inputs)
    for _ in range(4):
        module.load_state_dict({name: neighbour(weight) for name, weight in weights.items()})
        moved = outputs_of(module, {k: v if "mask" in k else neighbour(v) for k, v in inputs.items()})
        levels = [torch.maximum(n, (a - b).abs().max()) for n, a, b in zip(levels, moved, here, strict=True)]
    return levels


def outputs_of(module: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    with torch.no_grad():
        result = module(**inputs)
    return [result] if isinstance(result, Tensor) else list(result)


def neighbour(x: Tensor) -> Tensor:
    """Each value, with probability 1/2, moved to the next float32 up or down."""
    single = x.float()
    away = torch.where(torch.rand_like(single) < 0.5, -torch.inf, torch.inf)
    return torch.where(torch.rand_like(single) < 0.5, torch.nextafter(single, away), single).to(x.dtype)
