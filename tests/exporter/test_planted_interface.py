"""Interfaces, files and runtimes that are not what they should be: none may pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import planting
import pytest
from exported_models import Exported
from onnx import GraphProto, ModelProto, TensorProto, helper
from planting import (
    Fault,
    assert_found,
    checks,
    mask_input_ignored,
    node,
    reads,
    rewire,
)

from mytx.exporter.runtimes import OnnxRuntime


def input_renamed(graph: GraphProto) -> None:
    rewire(graph, "tgt", "input_ids")
    graph.input[0].name = "input_ids"


def input_dtype_changed(graph: GraphProto) -> None:
    graph.input[0].type.tensor_type.elem_type = TensorProto.INT32


def dimension_fixed_at_the_traced_length(graph: GraphProto) -> None:
    for value in graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "batch":
                dim.dim_value = 2


def dimension_without_a_name(graph: GraphProto) -> None:
    graph.output[0].type.tensor_type.shape.dim[1].Clear()


def dimensions_of_one_name(graph: GraphProto) -> None:
    for dim in graph.input[1].type.tensor_type.shape.dim:
        if dim.dim_param == "source":
            dim.dim_param = "target"


def output_renamed(graph: GraphProto) -> None:
    next(found for found in graph.node if found.output[0] == "logits").output[0] = "output"
    graph.output[0].name = "output"


def extra_output(graph: GraphProto) -> None:
    graph.output.append(helper.make_tensor_value_info(node(graph, "Softmax").output[0], TensorProto.FLOAT, None))


def output_missing(graph: GraphProto) -> None:
    extra_output(graph)
    del graph.output[0]


def extra_input(graph: GraphProto) -> None:
    graph.input.append(helper.make_tensor_value_info("temperature", TensorProto.FLOAT, [1]))


def input_dropped(graph: GraphProto) -> None:
    """Gone from the file without an error: a graph of the same name that knows no padding."""
    mask_input_ignored("tgt_key_padding_mask")(graph)
    for found in reads(graph, "tgt_key_padding_mask"):
        found.input[0] = "tgt"
    del graph.input[2]


def inputs_in_another_order(graph: GraphProto) -> None:
    first = onnx.ValueInfoProto()
    first.CopyFrom(graph.input[0])
    del graph.input[0]
    graph.input.append(first)


def weight_that_callers_may_override(graph: GraphProto) -> None:
    graph.input.append(helper.make_tensor_value_info("classification.bias", TensorProto.FLOAT, [13]))


@pytest.mark.parametrize(
    ("fault", "expected", "words"),
    [
        (
            input_dtype_changed,
            {"interface", "runtime", "rounding"},
            "input tgt is tensor(int32), the contract",
        ),
        (input_renamed, {"interface", "runtime", "rounding"}, "input input_ids is not in the contract"),
        (dimension_fixed_at_the_traced_length, {"interface", "runtime"}, "contract says ['batch', 'target']"),
        (dimension_without_a_name, {"interface"}, "output logits is ['batch', None, 13], the contract says"),
        (
            dimensions_of_one_name,
            {"interface", "runtime"},
            "input memory is ['batch', 'target', 16]",
        ),
        (output_renamed, {"interface", "rounding"}, "output logits is missing from the file"),
        (extra_output, {"interface", "rounding"}, "is not in the contract"),
        (output_missing, {"interface", "rounding", "weights"}, "output logits is missing from the file"),
        (extra_input, {"interface", "runtime", "rounding"}, "input temperature is not in the contract"),
        (input_dropped, {"interface", "runtime", "rounding"}, "input tgt_key_padding_mask is missing from the file"),
        (inputs_in_another_order, {"interface"}, "the inputs stand in the order memory, "),
        (weight_that_callers_may_override, {"interface"}, "input classification.bias is not in the contract"),
    ],
)
def test_an_interface_that_is_not_the_contracts_is_found(
    fault: Fault, expected: set[str], words: str, translation: Exported, tmp_path: Path
) -> None:
    reports = planting.verify_with(lambda model: fault(model.graph), translation, "decoder", tmp_path)
    assert_found(reports, expected, words)


# --- files and runtimes -----------------------------------------------------------------------------------------------


def test_a_file_that_onnxruntime_refuses_is_found(translation: Exported, tmp_path: Path) -> None:
    def fault(model: ModelProto) -> None:
        node(model.graph, "Softmax").op_type = "Softmacks"

    reports = planting.verify_with(fault, translation, "encoder", tmp_path)
    assert_found(reports, {"runtime", "rounding"}, "onnxruntime cannot load encoder.onnx")
    assert all((report.cases, report.compared) == (0, 0) for report in reports)


@pytest.mark.parametrize("kept", [0, 1, 5000, -1])
def test_a_file_that_is_cut_off_is_found(kept: int, translation: Exported, tmp_path: Path) -> None:
    path = tmp_path / "encoder.onnx"
    path.write_bytes(translation.path("encoder").read_bytes()[:kept])
    reports = translation.verify("encoder", path)
    assert len(reports) == 2
    for report in reports:
        assert not report.passed
        assert {"weights", "runtime"} <= checks(report)


def test_a_file_whose_weights_are_missing_is_found(translation: Exported, tmp_path: Path) -> None:
    path = tmp_path / "encoder.onnx"
    onnx.save(
        onnx.load(translation.path("encoder")), path, save_as_external_data=True, location="gone", size_threshold=0
    )
    (tmp_path / "gone").unlink()
    assert_found(translation.verify("encoder", path), {"weights", "runtime", "rounding"}, "gone")


def test_a_file_that_is_not_there_is_found(translation: Exported, tmp_path: Path) -> None:
    reports = translation.verify("encoder", tmp_path / "encoder.onnx")
    assert_found(reports, {"weights", "runtime", "rounding"}, "cannot load encoder.onnx")


Outputs = dict[str, np.ndarray]


class Stale:
    """Gives what it gave before, as a runtime does that hands out its buffer."""

    def __init__(self) -> None:
        self.before: dict[tuple[int, ...], Outputs] = {}

    def __call__(self, outputs: Outputs) -> Outputs:
        return self.before.setdefault(outputs["logits"].shape, outputs)


def truncated(outputs: Outputs) -> Outputs:
    return {"logits": outputs["logits"][:, :-1]}


def first_sentence_for_all(outputs: Outputs) -> Outputs:
    return {"logits": np.broadcast_to(outputs["logits"][:1], outputs["logits"].shape)}


def one_sentence_alone(outputs: Outputs) -> Outputs:
    return {"logits": outputs["logits"][:1]}


def one_nan(outputs: Outputs) -> Outputs:
    outputs["logits"].flat[-1] = np.nan
    return outputs


def zeros(outputs: Outputs) -> Outputs:
    return {"logits": np.zeros_like(outputs["logits"])}


def in_float64(outputs: Outputs) -> Outputs:
    return {"logits": outputs["logits"].astype(np.float64)}


def nothing(outputs: Outputs) -> Outputs:
    return {}


def empty(outputs: Outputs) -> Outputs:
    return {"logits": outputs["logits"][:0]}


def crash(outputs: Outputs) -> Outputs:
    raise RuntimeError("out of memory")


class LastOnly:
    """Wrong in every case but the last: a verifier that keeps only the last result would not notice."""

    def __init__(self, count: int) -> None:
        self.left = count - 1

    def __call__(self, outputs: Outputs) -> Outputs:
        self.left -= 1
        return outputs if self.left < 0 else zeros(outputs)


class FirstOnly:
    """Wrong in the last case alone."""

    def __init__(self, count: int) -> None:
        self.left = count - 1

    def __call__(self, outputs: Outputs) -> Outputs:
        self.left -= 1
        return zeros(outputs) if self.left < 0 else outputs


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda count: Stale(), {"rounding"}),
        (lambda count: truncated, {"rounding"}),
        (lambda count: first_sentence_for_all, {"rounding"}),
        (lambda count: one_sentence_alone, {"rounding"}),
        (lambda count: one_nan, {"rounding"}),
        (lambda count: zeros, {"rounding"}),
        (lambda count: in_float64, {"rounding"}),
        (lambda count: nothing, {"rounding"}),
        (lambda count: empty, {"rounding"}),
        (lambda count: crash, {"runtime", "rounding"}),
        (LastOnly, {"rounding"}),
        (FirstOnly, {"rounding"}),
    ],
)
def test_a_runtime_that_gives_something_else_is_found(
    make: Callable[[int], Callable[[Outputs], Outputs]],
    expected: set[str],
    translation: Exported,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = OnnxRuntime.run
    faults: dict[int, Any] = {}
    count = len(translation.plan("decoder"))

    def run(self: OnnxRuntime, inputs: Outputs) -> Outputs:
        fault = faults.setdefault(id(self.session), make(count))
        return fault(honest(self, inputs))

    monkeypatch.setattr(OnnxRuntime, "run", run)
    assert_found(translation.verify("decoder"), expected)
