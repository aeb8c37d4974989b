"""The rewrites of onnxruntime's optimiser that make a file wrong are named: real faults of its rewrites."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper

from mytx.exporter.errors import OptionError
from mytx.exporter.locate.optimizer import OptimizerFault, blame_optimizer
from mytx.exporter.locate.rewrites import node_types, rewrites
from mytx.exporter.parity.compare import ULP, Expected
from mytx.exporter.runtimes.onnx_reference import OnnxReference
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime, RuntimeOptions
from optimizer_cases import CASES, CONTRACT, WIDTH, X, Y
from planting_rewrites import exponent_of_norm, norm_turned_round, times_one

NORM = "LayerNormFusionL1"


# --- real rewrites ---------------------------------------------------------------------------------------------------


def a_file(folder: Path, *planted: Callable[[GraphProto], object]) -> Path:
    """A layer norm between a Relu and a Sigmoid, with ``planted`` in it."""
    rng = np.random.default_rng(1)
    weight, bias = (numpy_helper.from_array(rng.uniform(1, 2, WIDTH).astype(np.float32), name) for name in ("w", "b"))
    nodes = [
        helper.make_node("Relu", ["x"], ["positive"], "relu"),
        helper.make_node("LayerNormalization", ["positive", "w", "b"], ["normed"], "norm/0", axis=-1, epsilon=1e-5),
        helper.make_node("Sigmoid", ["normed"], ["y"], "sigmoid"),
    ]
    inputs, outputs = ([helper.make_tensor_value_info(spec.name, TensorProto.FLOAT, spec.labels)] for spec in (X, Y))
    graph = helper.make_graph(nodes, "small", inputs, outputs, [weight, bias])
    for plant in planted:
        plant(graph)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, folder / "small.onnx")
    return folder / "small.onnx"


def what_it_computes(path: Path) -> list[dict[str, Expected]]:
    """What the file itself computes, in float64."""
    runtime = OnnxReference.open(path, lifted=True)
    return [{"y": Expected(runtime.run(case.inputs)["y"].astype(np.float64), ULP)} for case in CASES]


def blamed(path: Path) -> OptimizerFault | None:
    return blame_optimizer(path, CONTRACT, CASES, what_it_computes(path))


def one_by_one(graph: GraphProto) -> None:
    times_one(graph, "positive")


def to_the_fourth(graph: GraphProto) -> None:
    norm_turned_round(graph)
    for node in graph.node:  # the signs as they belong
        if node.op_type == "Neg":
            node.op_type = "Identity"
    turned = next(node for node in graph.node if node.op_type == "Sub")
    turned.input[:] = reversed(turned.input)
    exponent_of_norm(graph, 4)


@pytest.fixture
def known_version() -> None:
    """The faults were found in this version. In a later one they may be mended, and there is nothing to be found."""
    if not onnxruntime.__version__.startswith("1.32."):
        pytest.skip("the planted faults are those of onnxruntime 1.32")


def test_an_honest_file_has_no_fault(tmp_path: Path) -> None:
    assert blamed(a_file(tmp_path)) is None


@pytest.mark.usefixtures("known_version")
@pytest.mark.parametrize("planted", [norm_turned_round, to_the_fourth])
def test_a_fusion_that_looks_at_too_little_is_named(planted: Callable[[GraphProto], object], tmp_path: Path) -> None:
    fault = blamed(a_file(tmp_path, planted))
    assert fault is not None
    assert fault.disabled_optimizers == (NORM,)
    assert (fault.level, fault.tried_at) == ("basic", "all")
    assert fault.failed_cases == fault.cases == len(CASES)
    assert fault.worst_ratio > 1e5
    assert fault.ratio_without < 4
    assert fault.nodes["LayerNormalization"] == 1
    assert fault.nodes["Sub"] == -1
    assert NORM in fault.candidates
    assert fault.failures[0].case == "00 (batch 1)"
    assert "allowed" in fault.failures[0].reason


@pytest.mark.usefixtures("known_version")
def test_the_session_that_is_advised_gives_what_the_file_computes(tmp_path: Path) -> None:
    path = a_file(tmp_path, norm_turned_round)
    fault = blamed(path)
    assert fault is not None
    names = list(fault.disabled_optimizers)
    for disabled, right in ((None, False), (names, True)):
        session = onnxruntime.InferenceSession(str(path), disabled_optimizers=disabled)
        (y,) = session.run(None, CASES[0].inputs)
        assert np.allclose(y, what_it_computes(path)[0]["y"].values, atol=1e-5) == right
    bundled = OnnxRuntime.open(path, RuntimeOptions(disabled_optimizers=fault.disabled_optimizers))
    assert np.array_equal(bundled.run(CASES[0].inputs)["y"], y)


@pytest.mark.usefixtures("known_version")
def test_rules_that_run_together_are_told_apart_where_the_file_cannot_be_loaded(tmp_path: Path) -> None:
    fault = blamed(a_file(tmp_path, one_by_one))
    assert fault is not None
    assert (fault.disabled_optimizers, fault.instead) == (("DivMulFusion",), ("EliminateIdentity",))
    assert [failure.case for failure in fault.failures] == [""]
    assert "cannot load" in fault.failures[0].reason
    assert fault.failed_cases == len(CASES)
    assert fault.nodes == {}
    assert fault.to_dict()["worst_ratio"] is None


@pytest.mark.usefixtures("known_version")
def test_two_faults_in_a_file_are_named_together(tmp_path: Path) -> None:
    fault = blamed(a_file(tmp_path, norm_turned_round, one_by_one))
    assert fault is not None
    assert set(fault.disabled_optimizers) == {NORM, "DivMulFusion"}
    assert fault.instead == ()  # neither does alone
    assert fault.ratio_without < 4


def test_a_file_that_is_wrong_itself_is_not_the_optimisers_doing(tmp_path: Path) -> None:
    path = a_file(tmp_path)
    expected = [{"y": Expected(1 - wanted["y"].values, ULP)} for wanted in what_it_computes(path)]
    fault = blame_optimizer(path, CONTRACT, CASES, expected)
    assert fault is not None
    assert (fault.level, fault.disabled_optimizers, fault.candidates) == ("off", (), ())
    assert fault.failed_cases == len(CASES)


def test_a_file_that_cannot_be_loaded_at_all_is_not_either(tmp_path: Path) -> None:
    expected = what_it_computes(a_file(tmp_path))
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    for name in ("bad.onnx", "gone.onnx"):
        fault = blame_optimizer(tmp_path / name, CONTRACT, CASES, expected)
        assert fault is not None
        assert fault.level == "off"
        assert "\n" not in fault.failures[0].reason


def test_without_cases_nothing_is_said(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no cases"):
        blame_optimizer(a_file(tmp_path), CONTRACT, [], [])


# --- what the optimiser did ------------------------------------------------------------------------------------------


def test_the_log_names_the_rewrites_that_change_a_file(tmp_path: Path) -> None:
    path = a_file(tmp_path, norm_turned_round)
    assert NORM in rewrites(path, RuntimeOptions())
    assert NORM not in rewrites(path, RuntimeOptions(disabled_optimizers=(NORM,)))
    assert rewrites(path, RuntimeOptions(level="off")) == ()
    assert rewrites(tmp_path / "gone.onnx", RuntimeOptions()) == ()


def test_nodes_are_counted_in_both_branches_too(tmp_path: Path) -> None:
    def branch(name: str) -> GraphProto:
        output = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node("Relu", ["x"], [name])], name, [], [output])

    both = helper.make_node("If", ["which"], ["y"], then_branch=branch("then"), else_branch=branch("else"))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])]
    inputs += [helper.make_tensor_value_info("which", TensorProto.BOOL, [])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])]
    model = helper.make_model(
        helper.make_graph([both], "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 18)], ir_version=8
    )
    onnx.save(model, tmp_path / "if.onnx")
    assert node_types(tmp_path / "if.onnx", RuntimeOptions(level="off")) == {"If": 1, "Relu": 2}
    assert node_types(tmp_path / "gone.onnx", RuntimeOptions()) is None
