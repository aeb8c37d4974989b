"""Models that cannot be exported are refused with a reason, and do not change."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bundles import tiny_model
from mytx.exporter.contracts import graph, ids, values
from mytx.exporter.errors import ExportError, OptionError
from mytx.exporter.graphs.exportable import custom_model
from mytx.exporter.graphs.inferred import infer_graphs
from mytx.exporter.graphs.user_code import check_float32
from mytx.exporter.graphs.user_model import custom_graphs
from mytx.exporter.pipeline import export_bundle
from odd_models import Embedded, Tables, WithoutReplacing, whole


class Counting(Embedded):
    """It counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.table(x)


def test_a_model_that_keeps_a_state_is_refused_and_left_as_it_was():
    model = Counting().train()
    with pytest.raises(OptionError, match="running the model changes its count"):
        custom_graphs(model, [whole(model)])
    assert (model.count.item(), model.training) == (0, True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_weights_of_another_dtype_are_refused_and_stay(dtype: torch.dtype):
    model = WithoutReplacing().to(dtype)
    with pytest.raises(OptionError, match="not float32 on the CPU"):
        custom_graphs(model, [whole(model)])
    assert model.table.weight.dtype == dtype


def test_the_library_refuses_no_graphs_and_two_of_a_name():
    model = WithoutReplacing().eval()
    outside = replace(whole(model), contract=replace(whole(model).contract, graph="../x"))
    with pytest.raises(OptionError, match=r"'\.\./x' is no name for a graph"):
        custom_model(model, [outside])
    with pytest.raises(OptionError, match="no graph to export"):
        custom_model(model, [])
    with pytest.raises(OptionError, match="two graphs are called full"):
        custom_model(model, [whole(model), whole(model)])


class Ending(Embedded):
    def encode(self, src: Tensor) -> Tensor:
        sys.exit(0)


def test_a_method_that_ends_the_program_is_said():
    with pytest.raises(OptionError, match="encode of Ending works neither with"):
        infer_graphs(Ending().eval())


class WithoutState(Embedded):
    def state_dict(self, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        raise RuntimeError("no state")


class SparseBuffer(Embedded):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("links", torch.eye(3).to_sparse())


def quantized() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Sequential(nn.Linear(4, 4)))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (WithoutState, r"state_dict\(\) of the model raised RuntimeError: no state"),
        (SparseBuffer, "links is sparse_coo"),
        (quantized, "not a tensor"),
        (scripted, "is scripted"),
    ],
)
def test_modules_that_cannot_be_exported_are_refused(build: Callable[[], nn.Module], words: str):
    with pytest.raises(OptionError, match=words) as caught:
        check_float32(build())
    assert caught.value.hint


class Failing(Embedded):
    @property
    def encode(self) -> Any:
        raise RuntimeError("not yet")


def test_a_property_that_fails_is_said():
    model = Failing().eval()
    contract = graph("full", "encode", [ids("x", ["batch", "source"], 20)], [values("y", ["batch", "source", 4])])
    with pytest.raises(OptionError, match="encode of Failing fails: not yet"):
        custom_model(model, [contract])


class Odd(Embedded):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Any:
        found = self.table(x)
        return {"dict": {"y": found}, "twice": (found, found), "one": found}[self.how]


def test_odd_outputs_are_named():
    two = graph("full", "forward", [ids("x", ["batch", "source"], 20)],
        [values("y", ["batch", "source", 4]), values("z", ["batch", "source", 4])])  # fmt: skip
    for how, contract, words in (
        ("dict", whole(nn.Module()), "it gives a dict with y, not tensors"),
        ("twice", two, "the same tensor twice"),
    ):
        with pytest.raises(OptionError) as caught:
            custom_graphs(Odd(how).eval(), [contract])
        assert words in caught.value.message
    named = graph("full", "forward", [ids("x", ["batch", "source"], 20)], [values("table", ["batch", "source", 4])])
    model = Odd("one")
    model.register_buffer("y", torch.zeros(1))
    with pytest.raises(OptionError, match="a weight of the model is called y"):
        custom_graphs(model.eval(), [whole(model)])
    assert custom_graphs(Odd("one").eval(), [named])


def test_a_length_that_is_not_said_is_named_by_the_export(tmp_path: Path):
    model = Tables().eval()
    with pytest.raises(ExportError) as caught:
        export_bundle(custom_model(model, [whole(model)]), tmp_path / "bundle")
    assert 'longest={"source": 80}' in (caught.value.hint or "")


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 2), tiny_model().double(), tiny_model().half()])
def test_the_library_refuses_what_it_cannot_export(model, tmp_path):
    with pytest.raises(OptionError) as caught:
        export_bundle(model, tmp_path / "bundle")
    assert caught.value.hint
    assert not list(tmp_path.iterdir())
