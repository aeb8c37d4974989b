"""Contracts that users write or that are inferred, and models of other kinds."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from mytx.exporter.cases.plan import make_plan
from mytx.exporter.contracts import attention, graph, ids, keep, padding, values
from mytx.exporter.errors import OptionError
from mytx.exporter.graphs.exportable import custom_model
from mytx.exporter.graphs.inferred import infer_graphs
from mytx.exporter.graphs.running import plain_torch
from mytx.exporter.graphs.user_model import custom_graphs
from mytx.exporter.pipeline import export_bundle


class Pool(nn.Module):
    """Batch first, a mask with 1 = keep, two outputs, an odd name for a dimension, and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 16)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.table.weight
        self.unused = nn.Linear(3, 3)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        kept = attention_mask.unsqueeze(-1).to(self.table.weight.dtype)
        pooled = (self.table(ids) * kept).sum(1) / kept.sum(1)
        return pooled, self.head(self.table(ids))


POOL = graph(
    "pool",
    "forward",
    [ids("ids", ["batch", "words"], 40), keep("attention_mask", ["batch", "words"])],
    [values("pooled", ["batch", 16]), values("scores", ["batch", "words", 40])],
)


def pool() -> Pool:
    torch.manual_seed(0)
    return Pool().eval()


def test_other_masks_other_dimensions_two_outputs_and_tied_weights(tmp_path: Path):
    subject = custom_model(pool(), [POOL])
    result = export_bundle(subject, tmp_path / "bundle")

    assert result.passed
    assert subject.graphs["pool"].held == {"table.weight", "head.weight"}
    plan = make_plan(POOL.contract)
    assert {case.inputs["ids"].shape[1] for case in plan} > {1, 7, 31, 61}
    assert all((case.inputs["attention_mask"] == 1).any(axis=1).all() for case in plan)  # none is all padding
    assert any((case.inputs["attention_mask"][:, 0] == 0).any() for case in plan)  # but on the left, too
    session = onnxruntime.InferenceSession(tmp_path / "bundle" / "pool.onnx")
    assert [tensor.shape for tensor in session.get_outputs()] == [["batch", 16], ["batch", "words", 40]]


def test_a_promise_that_the_model_breaks_fails(tmp_path: Path):
    """That padding changes nothing is said of the scores too, and is wrong there: they do not look at the mask."""
    promised = graph(
        "pool",
        "forward",
        [
            ids("ids", ["batch", "words"], 40, hidden_by="attention_mask", future="inside"),
            keep("attention_mask", ["batch", "words"]),
        ],
        [values("pooled", ["batch", 16]), values("scores", ["batch", "words", 40])],
    )
    result = export_bundle(custom_model(pool(), [promised]), tmp_path / "bundle", level="quick")
    assert result.passed is False
    assert result.report is not None
    assert {row.format for row in result.report.graphs if not row.passed} == {"eager", "onnx"}
    assert (result.bundle / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: graph("step", "forward", POOL.contract.inputs, POOL.contract.outputs),
            "graph 'step' cannot be the name",
        ),
        (lambda: graph("a/b", "forward", POOL.contract.inputs, POOL.contract.outputs), "cannot be the name of a file"),
        (lambda: graph("a", "forward", [], POOL.contract.outputs), "has no inputs"),
        (lambda: graph("a", "forward", POOL.contract.inputs, []), "has no outputs"),
        (lambda: graph("a", "forward", ["ids"], POOL.contract.outputs), "'ids' is no tensor"),
        (
            lambda: graph("a", "f", [ids("x", ["n"], 3), ids("x", ["n"], 3)], [values("y", ["n"])]),
            "two tensors called x",
        ),
        (lambda: graph("a", "f", [ids("x", ["n"], 3)], [values("y", ["m"])]), "y has the dimension m"),
        (
            lambda: graph("a", "f", [ids("x", ["n"], 3, hidden_by="z")], [values("y", ["n"])]),
            "x names z, which is no mask",
        ),
        (lambda: graph("a", "f", [ids("x", ["n"], 3)], [ids("y", ["n"], 3)]), "y is not made of floats"),
        (lambda: graph("a", "f", [ids("x", ["n"], 3)], [values("y", ["n"])], longest={"m": 9}), "longest names m"),
        (lambda: graph("a", "f", [ids("x", ["n"], 3)], [values("y", ["n"])], longest={"n": 3}), "3 is too short for n"),
        (lambda: ids("x", "batch", 3), "'batch' are no dimensions"),
        (lambda: padding("x", ["n", "m"], "int32"), "x cannot be a mask of int32"),
        (lambda: attention("x", ["n", "m"], "int64"), "x cannot be a mask of int64"),
    ],
)
def test_what_is_no_contract_is_refused(make, words: str):
    with pytest.raises(OptionError) as caught:
        make()
    assert words in caught.value.message
    assert caught.value.hint


def forward_of(**changes):
    """The graph of :class:`Pool` with other inputs, outputs or method."""
    parts = {"method": "forward", "inputs": POOL.contract.inputs, "outputs": POOL.contract.outputs, **changes}
    return graph("pool", parts["method"], parts["inputs"], parts["outputs"])


IDS, KEEP = POOL.contract.inputs
POOLED, SCORES = POOL.contract.outputs


@pytest.mark.parametrize(
    ("contract", "words"),
    [
        (forward_of(method="encode"), "Pool has no encode"),
        (forward_of(inputs=[IDS]), "takes ids, attention_mask: missing a required argument"),
        (forward_of(inputs=[ids("tokens", ["batch", "words"], 40), KEEP]), "takes ids, attention_mask"),
        (forward_of(inputs=[ids("ids", ["batch", "words"], 60), KEEP]), "the model fails on ids [2, 11]"),
        (forward_of(inputs=[ids("ids", ["words", "batch"], 40), KEEP]), "the model fails on ids [11, 2]"),
        (forward_of(outputs=[POOLED]), "gives Tensor, Tensor, the contract 1 outputs"),
        (
            forward_of(outputs=[values("pooled", ["batch", 17]), SCORES]),
            "pooled is [2, 16] for batch 2, words 11, the contract",
        ),
        (forward_of(outputs=[POOLED, values("scores", ["batch", 11, 40])]), "scores is"),
        (forward_of(outputs=[values("pooled", ["batch", 16], "int64"), SCORES]), "pooled is torch.float32"),
    ],
)
def test_a_contract_that_does_not_fit_the_model_is_refused(contract, words: str):
    with pytest.raises(OptionError) as caught:
        custom_graphs(pool(), [contract])
    assert words in caught.value.message


def test_a_model_that_takes_less_than_the_plan_tries_says_so():
    class Short(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places = nn.Parameter(torch.randn(20, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.places[: x.size(1)]

    shapes = [values("x", ["batch", "source", 4])], [values("y", ["batch", "source", 4])]
    with pytest.raises(OptionError, match=r"the model fails on x \[.*, 61, 4\]") as caught:
        custom_graphs(Short().eval(), [graph("full", "forward", *shapes)])
    assert "longest=" in (caught.value.hint or "")
    assert custom_graphs(Short().eval(), [graph("full", "forward", *shapes, longest={"source": 20})])


def test_a_model_that_is_not_the_same_twice_is_refused():
    class Dropping(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x)

    contract = graph("full", "forward", [values("x", ["batch", "source"])], [values("y", ["batch", "source"])])
    with pytest.raises(OptionError, match="gives another result each time") as caught:
        custom_graphs(Dropping().eval(), [contract])
    assert "dropout" in (caught.value.hint or "")


def test_a_model_that_computes_in_float32_whatever_it_is_given_is_explained(tmp_path: Path):
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.float())

    contract = graph("full", "forward", [values("x", ["batch", "source", 4])], [values("y", ["batch", "source", 4])])
    with pytest.raises(OptionError, match="the model fails in float64") as caught:
        export_bundle(custom_model(Fixed().eval(), [contract]), tmp_path / "bundle")
    assert ".float()" in (caught.value.hint or "")
    assert not list(tmp_path.iterdir())


# --- usual arguments -------------------------------------------------------------------------------------------------


class BatchFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def encode(self, source: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        return self.layer(self.table(source), src_key_padding_mask=src_key_padding_mask)


def test_the_batch_is_found_where_it_is():
    (found,) = infer_graphs(BatchFirst().eval())
    assert [spec.labels for spec in found.contract.inputs] == [("batch", "source"), ("batch", "source")]
    assert found.contract.outputs[0].labels == ("batch", "source", 8)
    assert found.contract.inputs[0].limit == 30
    assert found.contract.axes["source"].maximum == 512


def test_pytorch_is_as_it_was_after_a_look_at_a_model():
    from torch.nn.modules import transformer as module

    before = torch.backends.mha.get_fastpath_enabled(), module._detect_is_causal_mask
    with plain_torch():
        assert not torch.backends.mha.get_fastpath_enabled()
        assert module._detect_is_causal_mask(torch.ones(2, 2), None, 2) is False
    assert (torch.backends.mha.get_fastpath_enabled(), module._detect_is_causal_mask) == before


class Strange(nn.Module):
    def encode(self, src: Tensor, temperature: float) -> Tensor:
        return src.float() * temperature


class Mixed(nn.Module):
    """Its sentences depend on each other, in either layout."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 8)

    def encode(self, src: Tensor) -> Tensor:
        return self.table(src) + self.table(src).mean((0, 1), keepdim=True)


class Table(nn.Module):
    def encode(self, src: Tensor) -> Tensor:
        return src.float().unsqueeze(-1)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Module(), "has no encode, decode or forward"),
        (Strange(), "temperature, which encode of Strange takes, is no usual name"),
        (Mixed(), "sentences depend on each other"),
        (Table(), "goes into no torch.nn.Embedding"),
    ],
)
def test_a_model_without_the_usual_arguments_needs_a_contract(model: nn.Module, words: str):
    with pytest.raises(OptionError) as caught:
        infer_graphs(model.eval())
    assert words in caught.value.message
    assert "--contract" in (caught.value.hint or "")
