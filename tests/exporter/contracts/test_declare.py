"""Contracts in which a value is impossible are refused where they are declared."""

from __future__ import annotations

import pytest
from torch import nn

from mytx.exporter.contracts import attention, graph, ids, keep, padding, values
from mytx.exporter.errors import OptionError
from odd_models import whole


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
