"""Which rewrite of onnxruntime's optimiser is to blame: real faults of its rewrites, and made up ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper
from planting_rewrites import exponent_of_norm, norm_turned_round, times_one

from mytx.exporter.cases.case import Array, Case
from mytx.exporter.contracts.contract import Axis, Contract, TensorSpec
from mytx.exporter.errors import OptionError
from mytx.exporter.locate.optimizer import OptimizerFault, blame_optimizer
from mytx.exporter.locate.rewrites import node_types, rewrites
from mytx.exporter.parity.compare import ULP, Expected
from mytx.exporter.runtimes.onnx_reference import OnnxReference
from mytx.exporter.runtimes.onnxruntime import LEVELS, OnnxRuntime, RuntimeOptions
from mytx.exporter.runtimes.runtime import Description

WIDTH = 8
X = TensorSpec("x", "float32", (Axis("batch"), WIDTH))
Y = TensorSpec("y", "float32", (Axis("batch"), WIDTH))
CONTRACT = Contract("encoder", (X,), (Y,), "batch first")
CASES = [
    Case(
        f"{n:02d}", {"x": np.random.default_rng(n).standard_normal((n + 1, WIDTH)).astype(np.float32)}, f"batch {n + 1}"
    )
    for n in range(4)
]
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


# --- the search, with rewrites that are made up ----------------------------------------------------------------------


class Emulated:
    """An optimiser with rewrites of which some are wrong, and a file with the cases of a runtime.

    Args:
        names: the rewrites, in order.
        wrong: given the level and the rewrites that are done, how far off each case is, by its number.
        instead_of: a rewrite that is done only where another is not.
        required: rewrites that are done whatever is left out.
        since: the lowest level that does any.
    """

    def __init__(
        self,
        names: Sequence[str],
        wrong: Callable[[str, set[str]], Mapping[int, float]],
        instead_of: Mapping[str, str] | None = None,
        required: Collection[str] = (),
        since: str = "basic",
    ) -> None:
        self.names = names
        self.wrong = wrong
        self.instead_of = instead_of or {}
        self.required = required
        self.since = since
        self.opened: list[RuntimeOptions] = []
        self.off: Mapping[int, float] = {}

    def rewritten(self, path: Path, options: RuntimeOptions) -> list[str]:
        if list(LEVELS).index(options.level) < list(LEVELS).index(self.since):
            return []
        done = [name for name in self.names if name not in options.disabled_optimizers or name in self.required]
        return [name for name in done if self.instead_of.get(name) not in done]

    def open_file(self, path: Path, options: RuntimeOptions) -> Emulated:
        self.opened.append(options)
        self.off = self.wrong(options.level, set(self.rewritten(path, options)))
        return self

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        off = self.off.get(len(inputs["x"]) - 1, 0.0)
        if np.isinf(off):
            raise RuntimeError("a node fails\nand says more")
        return {"y": (inputs["x"] + np.float32(off)).astype(np.float32)}

    def describe(self) -> Description:
        return Description("emulated", "1")

    def blame(self, noise: float = 1e-6) -> OptimizerFault | None:
        expected = [{"y": Expected(case.inputs["x"].astype(np.float64), noise)} for case in CASES]
        return blame_optimizer(
            Path("none.onnx"), CONTRACT, CASES, expected, open_file=self.open_file, rewritten=self.rewritten
        )


TWELVE = [f"Fusion{letter}" for letter in "ABCDEFGHIJKL"]


def all_cases(off: float = 1.0) -> dict[int, float]:
    return dict.fromkeys(range(len(CASES)), off)


def each_alone(*guilty: str) -> Callable[[str, set[str]], Mapping[int, float]]:
    """Each of these does harm, whatever the others do."""
    return lambda level, done: all_cases() if done & set(guilty) else {}


def together(*guilty: str) -> Callable[[str, set[str]], Mapping[int, float]]:
    """These do harm where all of them are done."""
    return lambda level, done: all_cases() if set(guilty) <= done else {}


def found(emulated: Emulated, noise: float = 1e-6) -> OptimizerFault:
    fault = emulated.blame(noise)
    assert fault is not None
    return fault


@pytest.mark.parametrize("name", TWELVE)
def test_one_rewrite_that_does_harm_is_named(name: str) -> None:
    fault = found(Emulated(TWELVE, each_alone(name)))
    assert (fault.disabled_optimizers, fault.instead, fault.candidates) == ((name,), (), tuple(TWELVE))


@pytest.mark.parametrize("guilty", [*itertools.combinations(TWELVE[::2], 2), TWELVE[1:4], TWELVE[3::3], TWELVE])
def test_several_that_do_harm_each_alone_are_all_named_and_no_other(guilty: Sequence[str]) -> None:
    fault = found(Emulated(TWELVE, each_alone(*guilty)))
    assert sorted(fault.disabled_optimizers) == sorted(guilty)
    assert fault.instead == ()


def test_of_those_that_do_harm_only_together_the_last_is_named_and_the_others_are_told() -> None:
    fault = found(Emulated(TWELVE, together("FusionB", "FusionF", "FusionK")))
    assert (fault.disabled_optimizers, fault.instead) == (("FusionK",), ("FusionB", "FusionF"))


def test_what_is_done_in_place_of_another_is_left_out_with_it() -> None:
    emulated = Emulated(["FusionL1", "Other", "FusionL2"], each_alone("FusionL1", "FusionL2"), {"FusionL2": "FusionL1"})
    fault = found(emulated)
    assert fault.disabled_optimizers == ("FusionL1", "FusionL2")
    assert fault.candidates == ("FusionL1", "Other", "FusionL2")


def test_what_must_run_is_no_candidate() -> None:
    fault = found(Emulated(["Inserted", "Fusion"], each_alone("Fusion"), required=["Inserted"]))
    assert (fault.disabled_optimizers, fault.candidates) == (("Fusion",), ("Fusion",))


@pytest.mark.parametrize("names", [TWELVE, []], ids=["named in the log", "no log"])
def test_where_no_rewrite_can_be_blamed_none_is(names: Sequence[str]) -> None:
    fault = found(Emulated(names, lambda level, done: {} if level == "off" else all_cases()))
    assert (fault.level, fault.tried_at, fault.disabled_optimizers) == ("basic", "all", ())
    assert fault.candidates == tuple(names)
    assert fault.to_dict()["ratio_without"] is None


@pytest.mark.parametrize(("failing", "tried_at"), [(["extended"], "extended"), (["extended", "all"], "all")])
def test_the_lowest_level_is_told_and_the_highest_is_tried(failing: list[str], tried_at: str) -> None:
    fault = found(Emulated(TWELVE, lambda level, done: all_cases() if level in failing and "FusionC" in done else {}))
    assert (fault.level, fault.tried_at, fault.disabled_optimizers) == ("extended", tried_at, ("FusionC",))


def test_a_rewrite_without_which_another_case_fails_is_not_the_one() -> None:
    def wrong(level: str, done: set[str]) -> Mapping[int, float]:
        if level == "off" or "FusionD" not in done:
            return {}
        return {1: 1.0} if "FusionA" in done else {3: 1.0}

    fault = found(Emulated(TWELVE, wrong))
    assert fault.disabled_optimizers == ("FusionD",)
    assert [failure.case for failure in fault.failures] == ["01 (batch 2)"]
    assert (fault.failed_cases, fault.cases) == (1, len(CASES))


@pytest.mark.parametrize(
    ("off", "words"), [(np.inf, "a node fails"), (np.nan, "where the model gives a number"), (1e-4, "allowed")]
)
def test_an_error_and_a_nan_and_a_little_off_are_all_failures(off: float, words: str) -> None:
    fault = found(Emulated(TWELVE, lambda level, done: {2: off} if "FusionC" in done else {}))
    assert fault.disabled_optimizers == ("FusionC",)
    (failure,) = fault.failures
    assert words in failure.reason
    assert failure.case == "02 (batch 3)"


def test_what_is_too_noisy_to_judge_blames_nobody() -> None:
    assert Emulated(TWELVE, lambda level, done: all_cases(0.1) if done else {}).blame(noise=0.5) is None


def test_no_rewrite_is_tried_twice() -> None:
    emulated = Emulated(TWELVE, each_alone("FusionA", "FusionL"))
    found(emulated)
    tried = [(options.level, frozenset(options.disabled_optimizers)) for options in emulated.opened]
    assert len(tried) == len(set(tried))
    assert len(tried) < 60


def test_without_cases_nothing_is_said(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no cases"):
        blame_optimizer(a_file(tmp_path), CONTRACT, [], [])
