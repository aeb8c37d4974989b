"""Unusual models are exported correctly: tensors outside of the state dict, masks made inside, integer outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mytx.exporter.cases.plan import few_cases, make_plan
from mytx.exporter.contracts import graph, ids, padding, values
from mytx.exporter.errors import BundleError
from mytx.exporter.graphs.exportable import custom_model
from mytx.exporter.graphs.inferred import infer_graphs
from mytx.exporter.graphs.precision import in_float64
from mytx.exporter.graphs.user_model import custom_graphs
from mytx.exporter.locate.bundle import locate_in_bundle
from mytx.exporter.locate.places import locate
from mytx.exporter.pipeline import export_bundle
from mytx.exporter.testing import assert_parity
from odd_models import Embedded, Tables, WithoutReplacing, whole


class Mutating(Embedded):
    """It writes into what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        x[x == 3] = 1
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
