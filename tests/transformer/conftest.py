"""What the transformer's tests share: random weights that matter, an attention done by hand, the seed's results."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mytx.transformer
from mytx.transformer import MyMultiheadAttention, MyTransformer

DATA = Path(__file__).parents[1] / "data"
GOLDENS: dict[str, dict[str, Any]] = json.loads((DATA / "seed_goldens.json").read_text())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "golden" in metafunc.fixturenames:
        metafunc.parametrize("golden", GOLDENS)


@pytest.fixture(autouse=True)
def _repeatable_and_quick() -> Iterator[None]:
    """A fixed seed, and one thread: at these sizes more threads only wait for each other."""
    torch.manual_seed(18044977)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def shaken(module: nn.Module, dtype: torch.dtype = torch.float64) -> Any:
    """``module`` in eval mode with every parameter moved, so that biases and norms are neither 0 nor 1."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module.to(dtype).eval()


@pytest.fixture
def shake() -> Any:
    return shaken


@pytest.fixture
def attention() -> MyMultiheadAttention:
    """8 wide, 2 heads, float64."""
    return shaken(MyMultiheadAttention(8, 2))


@pytest.fixture
def make_model() -> Any:
    """A small float64 model in eval mode; keyword arguments change its configuration."""

    def make(dtype: torch.dtype = torch.float64, **changes: Any) -> MyTransformer:
        sizes = {"d_model": 8, "nhead": 2, "num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 12}
        return shaken(MyTransformer(**{**sizes, **changes}), dtype)

    return make


@pytest.fixture
def assert_close() -> Any:
    """Shape, dtype, finiteness, and the largest difference relative to the largest expected value."""

    def check(actual: Tensor, expected: Tensor, relative: float = 1e-12) -> None:
        assert actual.shape == expected.shape
        assert actual.dtype == expected.dtype
        assert actual.numel() > 0
        assert torch.isfinite(actual).all()
        assert (actual - expected).abs().max() <= relative * expected.abs().max()

    return check


@pytest.fixture
def by_hand() -> Any:
    """Attention one row at a time, over the keys it may attend to and no others; zero where there are none."""

    def attend(
        module: MyMultiheadAttention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        q, k, v = module.q_proj(query), module.k_proj(key), module.v_proj(value)
        heads, width = module.num_heads, module.head_dim
        joined, weights = torch.zeros_like(q), q.new_zeros(q.size(1), q.size(0), k.size(0))
        for n in range(q.size(1)):
            for h in range(heads):
                part = slice(h * width, (h + 1) * width)
                for t in range(q.size(0)):
                    scores = k[:, n, part] @ q[t, n, part] / math.sqrt(width)
                    if attn_mask is not None:
                        row = attn_mask[t] if attn_mask.dim() == 2 else attn_mask[n * heads + h, t]
                        scores = scores + as_added(row)
                    if key_padding_mask is not None:
                        scores = scores + as_added(key_padding_mask[n])
                    live = (scores > -math.inf).nonzero().flatten().tolist()
                    if live:
                        share = torch.softmax(scores[live], dim=0)
                        joined[t, n, part] = share @ v[live, n, part]
                        weights[n, t, live] += share / heads
        return module.out_proj(joined), weights

    def as_added(row: Tensor) -> Tensor:
        return torch.where(row, -math.inf, 0.0).double() if row.dtype == torch.bool else row.double()

    return attend


def half_of(golden: str) -> str:
    """``encoder`` or ``decoder`` for a golden made with that half of a whole model, else nothing."""
    return golden.partition("/usual_")[2]


class Seed:
    """Stored results of the seed: weights, inputs, outputs in float64 and float32."""

    def __init__(self) -> None:
        self.arrays = dict(np.load(DATA / "seed_goldens.npz"))
        self.scripts: dict[tuple[str, str, torch.dtype], torch.jit.ScriptModule] = {}

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): torch.from_numpy(v) for k, v in self.arrays.items() if k.startswith(prefix)}

    def module(self, golden: str, dtype: torch.dtype) -> nn.Module:
        """The module that a golden was made with."""
        entry = GOLDENS[golden]
        module = getattr(mytx.transformer, entry["module"])(**entry["ctor"])
        module.load_state_dict(self.tensors(f"{entry['weights']}/weights/"))
        half = half_of(golden)
        return (getattr(module, half) if half else module).to(dtype).eval()

    def scripted(self, golden: str, dtype: torch.dtype) -> torch.jit.ScriptModule:
        """One script serves every golden of the same module, so that it meets masks it was not specialised for."""
        key = (GOLDENS[golden]["weights"], half_of(golden), dtype)
        if key not in self.scripts:
            self.scripts[key] = torch.jit.script(self.module(golden, dtype))
        return self.scripts[key]

    def inputs(self, golden: str, dtype: torch.dtype) -> dict[str, Tensor]:
        tensors = self.tensors(f"{golden}/in/")
        assert sorted(tensors) == GOLDENS[golden]["inputs"]
        return {name: t if t.dtype == torch.bool else t.to(dtype) for name, t in tensors.items()}

    def outputs(self, golden: str, dtype: torch.dtype) -> list[Tensor]:
        kind = {torch.float64: "f64", torch.float32: "f32"}[dtype]
        return [torch.from_numpy(self.arrays[f"{golden}/out{i}/{kind}"]) for i in range(GOLDENS[golden]["outputs"])]


@pytest.fixture(scope="session")
def seed() -> Seed:
    return Seed()
