"""``assert_parity`` in a test suite passes for right files, and names the problem of wrong ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from bundles import tiny_bundle, tiny_model
from mytx.exporter.contracts import graph, ids, values
from mytx.exporter.errors import MytxError
from mytx.exporter.testing import assert_parity


class Scorer(nn.Module):
    """Anybody's module: ids and a float input to two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.linear = nn.Linear(8, 6)
        self.dropout = nn.Dropout(0.5)

    def forward(self, tokens: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        found = self.dropout(self.linear(self.table(tokens) * weight.unsqueeze(-1)))
        return torch.softmax(found, -1), found.mean(1)


CONTRACT = graph(
    "scorer",
    "forward",
    [ids("tokens", ["batch", "source"], 20), values("weight", ["batch", "source"])],
    [values("scores", ["batch", "source", 6]), values("mean", ["batch", 6])],
)


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    torch.manual_seed(0)
    return Scorer()


@pytest.fixture(scope="module")
def exported(scorer: Scorer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that the user made with PyTorch's own exporter."""
    path = tmp_path_factory.mktemp("scorer") / "scorer.onnx"
    batch, source = torch.export.Dim("batch"), torch.export.Dim("source")
    dims = {0: batch, 1: source}
    torch.onnx.export(
        scorer.eval(),
        kwargs=inputs(2, 7, as_tensors=True),
        f=str(path),
        dynamo=True,
        dynamic_shapes={"tokens": dims, "weight": dims},
        input_names=["tokens", "weight"],
        output_names=["scores", "mean"],
        verbose=False,
    )
    return path


def inputs(batch: int, source: int, *, as_tensors: bool = False):
    rng = np.random.default_rng(batch * source)
    found = {
        "tokens": rng.integers(0, 20, (batch, source)),
        "weight": rng.standard_normal((batch, source)).astype(np.float32),
    }
    return {name: torch.from_numpy(array) for name, array in found.items()} if as_tensors else found


def changed(path: Path, folder: Path, amount: float) -> Path:
    """The same file with one number changed."""
    model = onnx.load(path)
    (bias,) = [tensor for tensor in model.graph.initializer if tensor.name == "linear.bias"]
    array = numpy_helper.to_array(bias).copy()
    array[2] += amount
    bias.CopyFrom(numpy_helper.from_array(array, bias.name))
    onnx.save(model, folder / path.name)
    return folder / path.name


def test_a_file_of_any_exporter_passes_on_inputs(exported: Path, scorer: Scorer):
    scorer.train()
    report = assert_parity(exported, scorer, [inputs(2, 7), inputs(1, 1), inputs(3, 19, as_tensors=True)])

    assert scorer.training  # as it was
    assert report.passed
    assert [row.cases for row in report.graphs] == [3] * 7
    assert {row.graph for row in report.graphs} == {"scorer"}
    assert sum(row.allowed == 0.1 for row in report.graphs) == 1


def test_it_passes_on_a_plan_made_from_a_contract(exported: Path, scorer: Scorer):
    report = assert_parity(exported, scorer, CONTRACT)
    assert report.graphs[0].cases > 25
    assert report.graphs[0].compared > 1000


@pytest.mark.parametrize("what", ["inputs", "contract"])
@pytest.mark.parametrize("amount", [1e-3, 2e-6])
def test_what_differs_is_said_as_by_the_command(
    exported: Path, scorer: Scorer, tmp_path: Path, what: str, amount: float
):
    wrong = changed(exported, tmp_path, amount)
    with pytest.raises(AssertionError) as caught:
        assert_parity(wrong, scorer, inputs(2, 7) if what == "inputs" else CONTRACT)

    text = str(caught.value)
    assert "scorer.onnx does not compute what Scorer computes" in text
    assert "FAILED" in text
    assert "scorer.onnx, structure (onnx.reference, float64): case 00" in text
    assert "0.1 allowed" in text
    assert "parity.json" not in text  # there is none


def test_a_file_of_a_fixed_shape_fails_on_the_plan(scorer: Scorer, tmp_path: Path):
    path = tmp_path / "fixed.onnx"
    torch.onnx.export(
        scorer.eval(), kwargs=inputs(2, 7, as_tensors=True), f=str(path), dynamo=True, verbose=False,
        input_names=["tokens", "weight"], output_names=["scores", "mean"],
    )  # fmt: skip
    assert_parity(path, scorer, inputs(2, 7))
    with pytest.raises(AssertionError, match="the contract says"):
        assert_parity(path, scorer, CONTRACT)


def test_a_module_with_other_names_is_called_in_the_order_of_the_file(exported: Path, scorer: Scorer):
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = scorer

        def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            return self.inner(a, b)

    assert assert_parity(exported, Wrapped(), inputs(2, 5)).passed


def test_a_bundle_is_held_against_a_model_of_mytx():
    model = tiny_model()
    bundle = tiny_bundle()
    report = assert_parity(bundle, model, level="quick")
    assert {row.graph for row in report.graphs} == {"encoder", "decoder", "full"}

    name, weight = next(iter(model.named_parameters()))
    before = weight.data.clone()
    weight.data.view(-1)[0] += 1e-4
    with pytest.raises(AssertionError, match=f"weights: {name} differs from the model in 1 of"):
        assert_parity(bundle, model, level="quick")
    weight.data = before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (lambda path, module: ("missing.onnx", module, inputs(2, 7)), "no such file"),
        (lambda path, module: (path.parent, module, CONTRACT), "not a bundle"),
        (lambda path, module: (path, module), "nothing says what to run scorer.onnx on"),
        (lambda path, module: (path, module, []), "nothing says what to run scorer.onnx on"),
        (lambda path, module: (path, module, {"tokens": inputs(2, 7)["tokens"]}), "scorer.onnx takes tokens, weight"),
        (lambda path, module: (path, module, inputs(2, 7) | {"tokens": np.zeros((2, 7))}), "tokens is float64"),
        (lambda path, module: (path, module, inputs(2, 7) | {"tokens": np.zeros(7, np.int64)}), "tokens has shape [7]"),
        (lambda path, module: (path, module, inputs(2, 7) | {"tokens": np.zeros((2, 8), int)}), "must be 8"),
        (lambda path, module: (path, nn.Embedding(20, 8), inputs(2, 7)), "the model fails on tokens [2, 7]"),
        (lambda path, module: (path, nn.Bilinear(7, 7, 3), inputs(2, 7)), "the model fails"),
        (lambda path, module: (__file__, module, inputs(2, 7)), "cannot be read"),
        (lambda path, module: (tiny_bundle(), module, CONTRACT), "holds one of mytx's models, not a Scorer"),
        (lambda path, module: (tiny_bundle(), module), "holds one of mytx's models, not a Scorer"),
    ],
)
def test_what_cannot_be_compared_is_an_error_and_not_a_difference(
    exported: Path, scorer: Scorer, arguments, words: str
):
    with pytest.raises(MytxError) as caught:
        assert_parity(*arguments(exported, scorer))
    assert words in str(caught.value)
    assert caught.value.hint


# --- files of other exporters ----------------------------------------------------------------------------------------


class Adding(nn.Module):
    """``x + 2``, whatever the dtype of x."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tensor(2, dtype=x.dtype)


def adding(path: Path, dtype: int, *, old: bool = False) -> Path:
    """A file by hand: the 2 is an initializer, and in the ``old`` form of the format an input, too."""
    x, two, y = (
        helper.make_tensor_value_info(name, dtype, shape) for name, shape in (("x", ["n"]), ("two", []), ("y", ["n"]))
    )
    graph_ = helper.make_graph(
        [helper.make_node("Add", ["x", "two"], ["y"])],
        "adding",
        [x, two] if old else [x],
        [y],
        [helper.make_tensor("two", dtype, [], [2])],
    )
    model = helper.make_model(graph_, opset_imports=[helper.make_opsetid("", 8 if old else 18)])
    model.ir_version = 3 if old else 8
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("dtype", ["int32", "int64", "float64", "float32"])
def test_inputs_and_outputs_may_be_of_any_dtype(dtype: str, tmp_path: Path):
    path = adding(tmp_path / "adding.onnx", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    assert assert_parity(path, Adding(), {"x": np.arange(5).astype(dtype)}).passed


def test_weights_that_old_exporters_list_as_inputs_are_none(tmp_path: Path):
    path = adding(tmp_path / "adding.onnx", TensorProto.FLOAT, old=True)
    assert assert_parity(path, Adding(), {"x": np.arange(5, dtype=np.float32)}).passed


@pytest.mark.parametrize("name", ["generate", "greedy", "step", "full", "a[b]c"])
def test_the_name_of_a_file_says_nothing(name: str, tmp_path: Path):
    path = adding(tmp_path / f"{name}.onnx", TensorProto.FLOAT)
    assert assert_parity(path, Adding(), {"x": np.arange(5, dtype=np.float32)}).passed
    with pytest.raises(AssertionError) as caught:
        assert_parity(path, nn.Identity(), {"x": np.arange(5, dtype=np.float32)})
    assert f"{name}.onnx does not compute what Identity computes" in str(caught.value)
    assert f"{name}.onnx, structure" in str(caught.value)


def test_a_mask_may_have_infinity(tmp_path: Path):
    class Soft(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x, 0)

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("x", "y"))
    graph_ = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"], axis=0)], "soft", [x], [y])
    model = helper.make_model(graph_, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, tmp_path / "soft.onnx")
    values_ = np.array([0.5, -np.inf, 1.25], np.float32)
    assert assert_parity(tmp_path / "soft.onnx", Soft(), {"x": values_}).passed


@pytest.mark.parametrize(("gives", "words"), [({"y": 1}, "gives a dict with y"), (None, "gives a NoneType")])
def test_a_module_that_gives_no_tensor_is_said(gives: object, words: str, tmp_path: Path):
    class Strange(nn.Module):
        def forward(self, x: Tensor) -> object:
            return gives

    path = adding(tmp_path / "adding.onnx", TensorProto.FLOAT)
    with pytest.raises(MytxError, match=words):
        assert_parity(path, Strange(), {"x": np.arange(5, dtype=np.float32)})
