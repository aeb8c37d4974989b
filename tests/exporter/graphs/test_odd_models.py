"""Models as people write them: tensors outside of the state dict, masks made inside, states, odd outputs."""

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

from mytx.exporter.cases.plan import few_cases, make_plan
from mytx.exporter.contracts import CustomGraph, attention, graph, ids, keep, padding, values
from mytx.exporter.contracts.contract import TensorSpec
from mytx.exporter.errors import BundleError, ExportError, OptionError
from mytx.exporter.graphs.exportable import custom_model
from mytx.exporter.graphs.inferred import infer_graphs
from mytx.exporter.graphs.precision import in_float64
from mytx.exporter.graphs.user_code import check_float32
from mytx.exporter.graphs.user_model import custom_graphs
from mytx.exporter.locate.bundle import locate_in_bundle
from mytx.exporter.locate.places import locate
from mytx.exporter.pipeline import export_bundle
from mytx.exporter.testing import assert_parity


def whole(model: nn.Module, *inputs: TensorSpec, **more: Any) -> CustomGraph:
    """The graph of a model from ids to ``y [batch, source, 4]``."""
    specs = inputs or (ids("x", ["batch", "source"], 20),)
    return graph("full", "forward", specs, [values("y", ["batch", "source", 4])], **more)


class Embedded(nn.Module):
    """Ids to four numbers each, and room for what others add."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(20, 4)


class Tables(Embedded):
    """A buffer that is not saved, and a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.randn(80, 4), persistent=False)
        self.more = torch.randn(80, 4)
        self.list = [torch.randn(80, 4)]

    def forward(self, x: Tensor) -> Tensor:
        length = x.size(1)
        return self.table(x) + self.places[:length] + self.more[:length] + self.list[0][:length]


class Mutating(Embedded):
    """It writes into what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        x[x == 3] = 1
        return self.table(x)


class Counting(Embedded):
    """It counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.table(x)


class Inside(Embedded):
    """``nn.Transformer`` with a mask of PyTorch's own making, in float32 if nobody says otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(4, 2, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        embedded = self.table(x)
        return self.layer(embedded, embedded[:, :1], tgt_mask=mask, tgt_key_padding_mask=x == 0)


def test_tensors_that_are_not_in_the_state_dict_are_right(tmp_path: Path):
    model = Tables().eval()
    subject = custom_model(model, [whole(model, longest={"source": 80})])
    assert subject.graphs["full"].held == {"table.weight", "places"}
    assert export_bundle(subject, tmp_path / "bundle", level="quick").passed


def test_a_model_that_writes_to_its_inputs_changes_neither_the_cases_nor_the_users_arrays(tmp_path: Path):
    model = Mutating().eval()
    result = export_bundle(custom_model(model, [whole(model)]), tmp_path / "right", level="quick")
    assert result.passed
    plain = Embedded().eval()
    plain.forward = lambda x: plain.table(x)  # type: ignore[method-assign]
    x = torch.full((2, 7), 3)
    with pytest.raises(AssertionError):
        assert_parity(tmp_path / "right" / "full.onnx", WithoutReplacing().eval(), {"x": x})
    assert assert_parity(tmp_path / "right" / "full.onnx", model, {"x": x}).passed
    assert (x == 3).all()


class WithoutReplacing(Embedded):
    def forward(self, x: Tensor) -> Tensor:
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


def test_masks_that_a_model_makes_are_in_the_dtype_of_the_reference(tmp_path: Path):
    """PyTorch 2.13 gives nonsense, silently, for a float32 mask and a float64 query of 16 positions or more."""
    model = Inside().eval()
    contract = whole(model, ids("x", ["batch", "source"], 20, pad=0, future="inside"))
    subject = custom_model(model, [contract])
    assert subject.graphs["full"].contract.opened == ("x",)  # its first position sees itself alone

    result = export_bundle(subject, tmp_path / "bundle")

    assert result.passed, result.report and [finding for row in result.report.graphs for finding in row.findings]
    plan = make_plan(subject.graphs["full"].contract)
    assert any((case.inputs["x"][:, -1] == 0).any() for case in plan)
    assert not any((case.inputs["x"][:, 0] == 0).any() for case in plan)


class Masked(Embedded):
    """An encoder with a padding mask: position 0 may be padding."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.layer(self.table(x), src_key_padding_mask=mask)


def test_padding_on_the_left_is_tried_and_a_row_of_padding_is_not():
    model = Masked().eval()
    contract = whole(model, ids("x", ["batch", "source"], 20), padding("mask", ["batch", "source"]))
    found = custom_graphs(model, [contract])["full"].contract
    assert found.opened == ()
    masks = [case.inputs["mask"] for case in make_plan(found)]
    assert any(mask[:, 0].any() for mask in masks)
    assert not any(mask.all(axis=1).any() for mask in masks)


def test_a_mask_may_have_dimensions_of_one(tmp_path: Path):
    class Wide(Masked):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return super().forward(x, mask[:, 0, 0])

    model = Wide().eval()
    mask = padding("mask", ["batch", 1, 1, "source"])
    contract = whole(model, ids("x", ["batch", "source"], 20, hidden_by="mask"), mask)
    result = export_bundle(custom_model(model, [contract]), tmp_path / "bundle", level="quick")
    assert result.report is not None
    # What stands behind padding changes the output there, so the promise is about the rest alone, and holds.
    assert result.passed


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: padding("m", ["source"]), "m: in ['source'] nothing can be padding"),
        (lambda: padding("m", ["batch", 3, "source"]), "nothing can be padding"),
        (lambda: padding("m", ["batch", "batch"]), "nothing can be padding"),
        (lambda: ids("x", ["source"], 5, pad=0), "x: in ['source'] nothing can be padding"),
        (lambda: ids("x", ["batch", "lines", "source"], 5, pad=0), "nothing can be padding"),
        (lambda: attention("m", ["source"]), "no attention mask"),
        (lambda: keep("m", ["batch", "source"], "int32"), "cannot be a mask of int32"),
        (lambda: ids("x", ["batch", "source"], 0), "ids below 0 are none"),
        (lambda: ids("x", ["batch", "source"], 5, pad=5), "pad 5 is no id below 5"),
        (lambda: ids("x", ["batch", -1], 5), "are no dimensions"),
        (lambda: ids("x", [True, "batch"], 5), "are no dimensions"),
        (lambda: ids("x", ["batch", 10**13], 5), "are no dimensions"),
        (lambda: ids("x", [], 5), "x has no dimensions"),
        (lambda: ids("x", ["batch", "source"], 2**70), "are none"),
        (lambda: graph("full", None, [ids("x", ["batch"], 5)], [values("y", ["batch"])]), "None is no method"),
        (lambda: graph("f" * 300, "forward", [ids("x", ["batch"], 5)], [values("y", ["batch"])]), "cannot be the name"),
        (lambda: whole(nn.Module(), longest={"source": 10.5}), "the longest source is 10.5"),
        (lambda: whole(nn.Module(), longest={"source": float("inf")}), "the longest source is inf"),
        (lambda: values("y", ["batch", 4], "float64"), "y cannot be float64"),
        (lambda: whole(nn.Module(), values("x", ["batch", "source"], "int64")), "the input x is int64"),
        (lambda: whole(nn.Module(), longest={"source": "200"}), "the longest source is '200'"),
        (
            lambda: whole(
                nn.Module(), ids("x", ["batch", "source"], 5, hidden_by="m"), padding("m", ["batch", "target"])
            ),
            "hidden_by m, which is not of its length",
        ),
        (lambda: ids("x", ["batch size"], 5), "are no dimensions"),
        (lambda: ids("x", [""], 5), "are no dimensions"),
        (lambda: whole(nn.Module(), ids("x y", ["batch", "source"], 5)), "'x y' is no name for a tensor"),
        (lambda: whole(nn.Module(), ids("x", ["n", "source"], 5, future="inside")), "cannot be tried"),
        (lambda: whole(nn.Module(), ids("x", ["batch", "source"], 5, hidden_by="x")), "no mask of that kind"),
        (lambda: whole(nn.Module(), ids("x", ["batch", "source"], 5, hidden_by="y")), "no mask of that kind"),
    ],
)
def test_values_that_cannot_be_are_refused_where_they_are_written(make, words: str):
    with pytest.raises(OptionError) as caught:
        make()
    assert words in caught.value.message


class ChannelsFirst(Embedded):
    """Ids, causal, to ``[batch, 4, source]``; the padding in front of everything in the mask."""

    def forward(self, x: Tensor, extra: Tensor, mask: Tensor) -> Tensor:
        seen = (self.table(x) + extra[0].unsqueeze(-1)).masked_fill(mask.unsqueeze(-1), 0.0)
        return seen.cumsum(1).transpose(1, 2)


def test_lengths_and_batch_may_stand_anywhere(tmp_path: Path):
    model = ChannelsFirst().eval()
    contract = graph(
        "full",
        "forward",
        [
            ids("x", ["batch", "source"], 20, hidden_by="mask", future="inside"),
            values("extra", [1, "batch", "source"], hidden_by="mask", future="inside"),
            padding("mask", ["batch", "source"]),
        ],
        [values("y", ["batch", 4, "source"])],
    )
    result = export_bundle(custom_model(model, [contract]), tmp_path / "bundle", level="quick")
    assert result.passed, result.report and [row.findings for row in result.report.graphs]
    assert result.report is not None
    assert any(row.format == "eager" and row.cases > 5 for row in result.report.graphs)


class Counted(Embedded):
    """Integers, which have no rounding."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.table(x), x * 100_000_000 + 1


COUNTED = graph(
    "full",
    "forward",
    [ids("x", ["batch", "source"], 20)],
    [values("y", ["batch", "source", 4]), values("n", ["batch", "source"], "int64")],
)


class OffByOne(Counted):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.table(x), x * 100_000_000 + 2


def test_integers_must_be_equal(tmp_path: Path):
    result = export_bundle(custom_model(Counted().eval(), [COUNTED]), tmp_path / "bundle", level="quick")
    assert result.passed
    with pytest.raises(AssertionError) as caught:
        assert_parity(tmp_path / "bundle" / "full.onnx", OffByOne().eval(), {"x": torch.tensor([[2, 3]])})
    assert "full.onnx, rounding" in str(caught.value)
    assert "n at [0, " in str(caught.value)


def test_locate_does_not_call_right_what_it_has_not_looked_at(tmp_path: Path):
    subject = custom_model(Counted().eval(), [COUNTED], source="odd:build")
    bundle = export_bundle(subject, tmp_path / "bundle", level="quick", verify=False).bundle
    with pytest.raises(BundleError, match=r"in full there are several outputs, and .* holds no reference cases"):
        locate_in_bundle(bundle)


class Zero(Embedded):
    def forward(self, x: Tensor) -> Tensor:
        return self.table(x) * 0.0


def test_a_head_that_gives_zeros_is_judged(tmp_path: Path):
    model = Zero().eval()
    torch.nn.init.zeros_(model.table.weight)
    assert export_bundle(custom_model(model, [whole(model)]), tmp_path / "bundle", level="quick").passed


class InDicts(Embedded):
    """Submodules that give what is no tensor."""

    class Inner(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"found": x + 1.0}

    class Empty(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return ()

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.empty = self.Inner(), self.Empty()
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.empty(x)
        return self.last(self.inner(self.table(x))["found"])


def test_the_place_is_found_where_modules_give_dicts(tmp_path: Path):
    model = InDicts().eval()
    subject = custom_model(model, [whole(model)])
    assert export_bundle(subject, tmp_path / "bundle", level="quick").passed
    with torch.no_grad():
        model.last.bias[0] += 1e-2
    cases = few_cases(make_plan(subject.graphs["full"].contract))
    found = locate(tmp_path / "bundle" / "full.onnx", subject.graphs["full"], cases)
    assert [place.module for place in found.introduced] == ["last"]


def test_weights_that_share_their_memory_do_so_afterwards():
    model = Embedded()
    model.other = nn.Embedding(20, 4)
    model.other.weight.data = model.table.weight.data
    with in_float64(model):
        assert model.other.weight.dtype == torch.float64
        assert model.other.weight.data_ptr() == model.table.weight.data_ptr()
    assert model.other.weight.dtype == torch.float32
    assert model.other.weight.data_ptr() == model.table.weight.data_ptr()


def test_the_library_refuses_no_graphs_and_two_of_a_name():
    model = WithoutReplacing().eval()
    outside = replace(whole(model), contract=replace(whole(model).contract, graph="../x"))
    with pytest.raises(OptionError, match=r"'\.\./x' is no name for a graph"):
        custom_model(model, [outside])
    with pytest.raises(OptionError, match="no graph to export"):
        custom_model(model, [])
    with pytest.raises(OptionError, match="two graphs are called full"):
        custom_model(model, [whole(model), whole(model)])


class Failing(Embedded):
    @property
    def encode(self) -> Any:
        raise RuntimeError("not yet")


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


def test_a_table_that_is_longer_than_any_plan_needs_no_contract():
    class Long(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(30, 8, padding_idx=0)
            self.register_buffer("places", torch.randn(5000, 8))

        def encode(self, src: Tensor) -> Tensor:
            return self.table(src) + self.places[: src.size(1)]

    (found,) = infer_graphs(Long().eval())
    assert found.contract.axes["source"].maximum == 512
    assert found.contract.inputs[0].pad == 0


def test_a_length_that_is_not_said_is_named_by_the_export(tmp_path: Path):
    model = Tables().eval()
    with pytest.raises(ExportError) as caught:
        export_bundle(custom_model(model, [whole(model)]), tmp_path / "bundle")
    assert 'longest={"source": 80}' in (caught.value.hint or "")
