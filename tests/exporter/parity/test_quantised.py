"""What int8 files are held against: the model with the integers' weights, and rounding as a runtime rounds."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime import InferenceSession
from torch import nn

from exported_models import Exported, build
from mytx.exporter.cases.case import Array
from mytx.exporter.cases.identities import only
from mytx.exporter.formats.quantisation import BLOCK, RULES, quantise
from mytx.exporter.formats.table import FORMATS
from mytx.exporter.parity.compare import FACTOR, FAIL, PASS, Comparison, Expected, rounded_otherwise
from mytx.exporter.parity.quantised import RoundedProducts, dequantised, rounded, rounded_blocks, truths
from mytx.exporter.parity.stored import key_of, read_stored, write_stored
from mytx.exporter.parity.verify import _doubtful, verify_file
from mytx.exporter.runtimes.run import runs_of
from mytx.exporter.runtimes.runtime import Description, Runtime
from mytx.models import CoupletModel

INT8 = FORMATS["int8"]
PRECISION = pytest.mark.parametrize("precision", RULES)
VALUES = st.floats(-1e3, 1e3, width=32)


Rounded = Callable[..., torch.Tensor]
ROUNDED = pytest.mark.parametrize("rounded", [rounded, rounded_blocks])


def quantise_and_back() -> onnx.ModelProto:
    """``DynamicQuantizeLinear`` and ``DequantizeLinear``."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@settings(max_examples=60, deadline=None)
@given(arrays(np.float32, array_shapes(min_dims=1, max_dims=3, max_side=6), elements=VALUES))
def test_it_rounds_as_the_operator_does(x: np.ndarray) -> None:
    (right,) = ReferenceEvaluator(quantise_and_back()).run(None, {"x": x})
    found = rounded(torch.from_numpy(x)).numpy()
    step = (max(0.0, float(x.max())) - min(0.0, float(x.min()))) / 255 or 1.0
    off = np.abs(found - right) / step
    assert ((off < 1e-3) | (np.abs(off - 1) < 1e-3)).all()
    places = x.astype(np.float64) / step
    between = np.abs(places - np.floor(places) - 0.5) < 1e-3  # where float32 may go either way
    ends = 255 * step - np.abs(x) < 2e-3  # the zero point is rounded, so that an end may be cut
    assert (off[~between & ~ends] < 1e-3).all()


@settings(max_examples=60, deadline=None)
@given(arrays(np.float32, st.tuples(st.integers(1, 5), st.sampled_from([16, 32, 50, 64])), elements=VALUES))
def test_it_rounds_as_the_operator_does_in_blocks(x: np.ndarray) -> None:
    """A product with the unit matrix, which 4 bits hold exactly, gives the rounded activations themselves."""
    columns = x.shape[1]
    unit = RULES["int4"].quantise(np.eye(columns, dtype=np.float32), False)
    assert (unit.floats == np.eye(columns)).all()
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, columns]) for name in "xy"]
    weights = [numpy_helper.from_array(array, name) for name, array in (("w", unit.values), ("s", unit.scales))]
    numbers = {"N": columns, "K": columns, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **numbers)
    domains = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=domains, ir_version=8)
    (right,) = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    found = rounded_blocks(torch.from_numpy(x)).numpy()
    blocks = np.pad(x, ((0, 0), (0, -columns % BLOCK))).reshape(len(x), -1, BLOCK)
    step = np.repeat(np.abs(blocks).max(axis=-1), BLOCK, axis=-1)[:, :columns].astype(np.float64) / 127
    step[step == 0] = 1
    off, places = np.abs(found - right), x / step
    between = np.abs(places - np.floor(places) - 0.5) < 1e-3  # where float32 may go either way
    sums = 1e-5 * np.abs(x).sum(axis=-1, keepdims=True)  # of blocks, in float32, with 8 added to each integer
    assert (off <= sums + between * step).all()


@ROUNDED
@pytest.mark.parametrize("x", [torch.zeros(3, 2), torch.ones(4), -torch.ones(2, 2), torch.tensor([2.5])])
def test_what_needs_no_rounding_stays(x: torch.Tensor, rounded: Rounded) -> None:
    torch.testing.assert_close(rounded(x), x)


@ROUNDED
def test_nothing_stays_nothing(rounded: Rounded) -> None:
    assert rounded(torch.zeros(0, 4)).shape == (0, 4)


@ROUNDED
def test_nudged_about_one_value_goes_to_the_other_side_and_other_ones_for_other_inputs(rounded: Rounded) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 32, generator=generator)
    sets = []
    for _ in range(200):
        moved = torch.nextafter(x, torch.where(torch.rand(x.shape, generator=generator) < 0.5, x, x + 1))
        sets.append({tuple(place) for place in torch.nonzero(rounded(moved, True) != rounded(moved)).tolist()})
    assert 0.5 < sum(map(len, sets)) / len(sets) < 3
    assert len(set().union(*sets)) > 3  # those that are near the middle between two integers


@ROUNDED
def test_float64_is_never_nudged(rounded: Rounded) -> None:
    x = torch.randn(64, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(rounded(x, True), rounded(x))


@pytest.mark.parametrize(("precision", "rounded"), [("int8", rounded), ("int4", rounded_blocks)])
def test_products_with_matrices_are_rounded_and_no_others(precision: str, rounded: Rounded) -> None:
    x, matrix = torch.randn(5, 40), torch.randn(6, 40)
    with RoundedProducts(RULES[precision], nn.Module()):
        found, vector, both = F.linear(x, matrix), F.linear(x, matrix[:1]), x @ matrix.T
    # In 4 bits the operator shifts weights, and float32 is less exact.
    torch.testing.assert_close(found, F.linear(rounded(x), matrix), rtol=0, atol=0 if precision == "int8" else 1e-4)
    with RoundedProducts(RULES[precision], nn.Module()):
        exact = F.linear(x.double(), matrix.double())
    assert torch.equal(exact, F.linear(rounded(x.double()), matrix.double()))
    assert not torch.equal(found, F.linear(x, matrix))
    assert torch.equal(vector, F.linear(x, matrix[:1]))
    assert torch.equal(both, x @ matrix.T)


# --- the model -------------------------------------------------------------------------------------------------------


@PRECISION
def test_within_the_block_the_model_has_the_weights_of_the_integers_and_afterwards_its_own(precision: str) -> None:
    model = build("couplet")
    looked_up = {name for name in model.state_dict() if "embedding" in name}
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    places = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    with contextlib.suppress(KeyboardInterrupt), dequantised(model, RULES[precision]):
        for name, tensor in model.state_dict().items():
            if tensor.dim() < 2:
                assert torch.equal(tensor, before[name])
                continue
            quantised = quantise(name, before[name].numpy(), RULES[precision], looked_up)
            assert torch.equal(tensor, torch.from_numpy(quantised.floats))
            assert not torch.equal(tensor, before[name])
        raise KeyboardInterrupt
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == places


@PRECISION
def test_tied_weights_stay_tied(precision: str) -> None:
    model = CoupletModel(13, 16, 2, 1, 1, 24, max_length=40).eval()
    model.classification.weight = model.token_embedding.embedding.weight
    with dequantised(model, RULES[precision]):
        assert model.classification.weight.data_ptr() == model.token_embedding.embedding.weight.data_ptr()
        assert float(model.classification.weight.detach().abs().max()) > 0
    assert model.classification.weight is model.token_embedding.embedding.weight


# --- truths ----------------------------------------------------------------------------------------------------------


def test_without_rounding_it_is_held_against_the_identities_too(translation: Exported) -> None:
    graph, plan = translation.every["decoder"], translation.plan("decoder")
    rounding, exact = truths(INT8, RULES["int8"], graph, plan)
    assert (rounding.key, exact.key) == ("decoder.int8", "decoder.int8.exact")
    assert (rounding.lifted, exact.lifted) == (False, True)
    assert [case.name for case in rounding.plan] == [case.name for case in plan if case.same_as is None]
    assert all(case.small for case in exact.plan)
    assert {case.group for case in exact.plan} >= {"shapes", "disturbed", "identities"}
    assert exact.other is None
    assert exact.graph is graph


def test_what_is_left_of_a_plan_points_to_the_same_cases(translation: Exported) -> None:
    plan = translation.plan("decoder")
    kept = only(plan, lambda case: case.group == "identities")
    assert len(kept) < len(plan)
    for case in kept:
        before = next(other for other in plan if other.name == case.name)
        assert (case.same_as is None) == (before.same_as is None)
        if case.same_as is not None:
            assert before.same_as is not None
            assert kept[case.same_as.case].name == plan[before.same_as.case].name


def test_no_stored_cases_of_two_kinds_have_one_key() -> None:
    names = [key_of(INT8, graph, lifted=lifted) for graph in ("step", "full") for lifted in (False, True)]
    assert len(set(names)) == 4


# --- roundings to the other side -------------------------------------------------------------------------------------


def comparison(verdict: str) -> Comparison:
    return Comparison("output", 1.0, 1.0, math.inf if verdict == FAIL else 1.0, verdict)


@pytest.mark.parametrize(("failed", "cases", "doubted"), [(1, 2, True), (2, 8, True), (3, 8, False), (8, 8, False)])
def test_only_a_quarter_of_the_cases_may_be_rounded_otherwise(failed: int, cases: int, doubted: bool) -> None:
    results = {str(number): [comparison(FAIL if number < failed else PASS)] for number in range(cases)}
    found = _doubtful(results, FACTOR, rounds=True)
    assert found == ({str(number) for number in range(failed)} if doubted else set())


def test_the_noise_of_other_roundings_counts_and_so_do_their_ties() -> None:
    one = Expected(np.ones((3, 2)), 0.1, ties=(1,), other=(0.5, (0, 1)))
    found = rounded_otherwise({"a": one, "b": replace(one, other=None), "c": replace(one, other=(0.01, ()))})
    assert (found["a"].noise, found["a"].ties) == (0.5, (0, 1))
    assert found["b"] == replace(one, other=None)
    assert found["c"].noise == 0.1


@PRECISION
@pytest.mark.parametrize("name", ["encoder", "step"])
def test_what_is_stored_verifies_the_file_without_the_model(
    name: str, precision: str, translation: Exported, tmp_path: Path
) -> None:
    pairs = translation.quantised_noises(name, precision)
    with dequantised(translation.model, RULES[precision]):
        write_stored(tmp_path / "reference.npz", {truth.key: noise.stored() for truth, noise in pairs})
    stored = read_stored(tmp_path / "reference.npz")
    runs = runs_of(FORMATS[precision], translation.contract(name), [name], translation.folder)
    for truth, _ in pairs:
        cases = stored[truth.key]
        outputs = [output for case in cases.expected for output in case.values()]
        assert all((output.other is None) == truth.lifted for output in outputs)
        reports = verify_file(
            translation.quantised(name, precision),
            translation.contract(name),
            cases.plan,
            cases.expected,
            [run for run in runs if truth.takes(run)],
            format_name=precision,
            measure=lambda number, cases=cases: rounded_otherwise(cases.expected[number]),
        )
        assert reports
        assert all(report.passed and report.compared for report in reports)


@dataclass
class Moved:
    """A runtime whose outputs are off in the cases with these inputs."""

    runtime: Runtime
    wrong: set[int]
    off: float

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        off = self.off if id(inputs) in self.wrong else 0.0
        return {key: (array + off).astype(array.dtype) for key, array in self.runtime.run(inputs).items()}

    def describe(self) -> Description:
        return self.runtime.describe()


@pytest.mark.parametrize("everywhere", [False, True])
def test_one_value_rounded_otherwise_passes_and_everything_off_by_as_much_does_not(
    everywhere: bool, translation: Exported
) -> None:
    (truth, noise), _ = translation.quantised_noises("encoder")
    path, contract = translation.quantised("encoder"), translation.contract("encoder")
    run = runs_of(INT8, contract, ["encoder"], translation.folder)[0]
    one = next(number for number, case in enumerate(noise.plan) if not case.core)
    with dequantised(translation.model, RULES["int8"]):
        other = noise._with_other([one])[0]["memory"].other
        assert other is not None
        assert other[0] > 100 * noise.references[one]["memory"].noise
        wrong = {id(case.inputs) for number, case in enumerate(noise.plan) if everywhere or number == one}
        moved = replace(run, open=lambda path: Moved(run.open(path), wrong, other[0]))
        (report,) = verify_file(
            path,
            contract,
            truth.plan,
            noise.references,
            [moved],
            format_name="int8",
            measure=noise.more,
            settle=noise.settle,
        )
    assert report.passed is not everywhere
