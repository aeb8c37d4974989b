"""The reference of a search: ids, scores, and sentences with two results that are equally right."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from exported_models import build
from mytx.exporter.cases.case import Array, Case
from mytx.exporter.cases.search_plan import make_search_plan
from mytx.exporter.contracts.contract import Contract
from mytx.exporter.graphs.graph import Graph
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.parity.compare import PASS, Expected, compare_case
from mytx.exporter.parity.report import GraphReport
from mytx.exporter.parity.search_reference import endless, measure_search, search_references
from mytx.exporter.parity.stored import read_stored, store, write_stored
from mytx.exporter.parity.verify import verify_file
from mytx.exporter.runtimes.eager import Eager
from mytx.exporter.runtimes.run import Run
from mytx.exporter.runtimes.runtime import Description
from mytx.models import Generator

FIRST, SECOND = 4, 5  # ids that score the same in a model of twins


def case(numbers: dict[str, float], batch: int = 3, length: int = 6, seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)
    dtypes = {"length_penalty": np.float32}
    inputs: dict[str, Array] = {
        "src": rng.integers(0, 11, (batch, length)),
        "src_key_padding_mask": np.arange(length) >= rng.integers(2, length + 1, (batch, 1)),
        **{name: np.array(value, dtypes.get(name, np.int64)) for name, value in numbers.items()},
    }
    return Case("00", inputs, "a case", small=True)


def twins(loved: float) -> Any:
    """A model in which two ids always score the same, the best of all where ``loved`` is large."""
    model = build("lively")
    with torch.no_grad():
        model.classification.weight[SECOND] = model.classification.weight[FIRST]  # type: ignore[index, operator, union-attr]
        model.classification.bias[[FIRST, SECOND]] = loved  # type: ignore[index, operator, union-attr]
        embedding = model.tgt_token_embedding.embedding.weight  # type: ignore[union-attr]
        embedding[SECOND] = embedding[FIRST]  # type: ignore[index, operator]
    return model


def referred(model: Any, cases: list[Case], name: str = "generate") -> tuple[Graph, list[dict[str, Expected]]]:
    graph = graphs_of(model)[name]
    return graph, search_references(model, graph, cases)


# --- what it is ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["greedy", "generate"])
def test_it_is_the_search_in_float64_and_the_model_is_as_it_was(name: str) -> None:
    model = build("lively")
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    wishes = {"max_length": 9, "length_penalty": 0.5} | (
        {"num_beams": 3, "num_hypotheses": 2} if name == "generate" else {}
    )
    one = case(wishes)
    _, (outputs,) = referred(model, [one], name)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert all(tensor.dtype == before[key].dtype for key, tensor in model.state_dict().items())
    src, padding = (torch.from_numpy(one.inputs[key]) for key in ("src", "src_key_padding_mask"))
    double = build("lively").double()
    tokens, lengths, scores = Generator(double)(src, padding, **wishes)  # type: ignore[arg-type]
    assert outputs["tokens"].values.tolist() == tokens.tolist()
    assert outputs["lengths"].values.tolist() == lengths.tolist()
    assert outputs["scores"].values.tolist() == scores.tolist()
    assert (outputs["tokens"].exact, outputs["lengths"].exact, outputs["scores"].exact) == (True, True, False)
    assert outputs["tokens"].pad == model.config.pad_id  # type: ignore[union-attr]
    assert 0 < outputs["scores"].noise < 1e-5


def test_numbers_that_are_left_out_have_the_contracts_defaults() -> None:
    model = build("lively")
    _, (left_out, given) = referred(
        model,
        [
            case({"max_length": 6}),
            case({"max_length": 6, "min_length": 0, "num_beams": 1, "num_hypotheses": 1, "length_penalty": 1}),
        ],
    )
    for name, expected in left_out.items():
        assert expected.values.tolist() == given[name].values.tolist()


def test_noise_covers_an_honest_float32_run_and_more_runs_only_add_to_it() -> None:
    model = build("lively")
    plan = [item for item in make_search_plan(graphs_of(model)["generate"].contract) if item.small]
    graph, references = referred(model, plan)
    for item, expected in zip(plan, references, strict=True):
        numbers = {
            spec.name: np.array(spec.default, dtype=spec.dtype)
            for spec in graph.contract.inputs
            if spec.default is not None
        }
        outputs = Eager(graph).run({**numbers, **item.inputs})
        results = compare_case(graph.contract, outputs, expected)
        assert all(result.verdict == PASS and result.ratio <= 1 for result in results)
    before = references[1]
    after = measure_search(model, graph, plan, references, 1)
    assert after is references[1]
    assert after["scores"].noise >= before["scores"].noise
    assert after["tokens"] is before["tokens"]


# --- ties ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "numbers", [{"max_length": 3}, {"max_length": 3, "num_beams": 2}, {"max_length": 2, "num_beams": 5}]
)
def test_where_two_ids_score_the_same_every_sentence_ties(numbers: dict[str, float]) -> None:
    _, (outputs,) = referred(twins(30.0), [case(numbers)])
    assert {expected.ties for expected in outputs.values()} == {(0, 1, 2)}


def test_where_nothing_ties_none_is_said_to() -> None:
    model = build("lively")
    plan = [item for item in make_search_plan(graphs_of(model)["generate"].contract) if item.small]
    _, references = referred(model, plan)
    tied = sum(len(outputs["tokens"].ties) for outputs in references)
    sentences = sum(len(outputs["tokens"].values) for outputs in references)
    assert tied <= sentences / 10


@pytest.mark.parametrize(("gap", "ties"), [(1e-7, True), (1e-2, False)])
def test_a_margin_near_the_noise_is_a_tie_and_a_wide_one_is_not(gap: float, ties: bool) -> None:
    model = twins(30.0)
    with torch.no_grad():
        model.classification.bias[FIRST] += gap
    _, (outputs,) = referred(model, [case({"max_length": 3})], "greedy")
    assert (len(outputs["tokens"].ties) == 3) == ties
    if not ties:
        assert outputs["tokens"].ties == ()
        assert (outputs["tokens"].values == FIRST).all()


def mixed() -> tuple[Graph, Case, dict[str, Expected]]:
    """A case of four sentences of which some tie and some do not: twins that are chosen only now and then."""
    model = twins(0.0)
    for seed in range(40):
        one = case({"max_length": 4}, batch=4, seed=seed)
        graph, (outputs,) = referred(model, [one], "greedy")
        if len(outputs["tokens"].ties) == 1 and len(set(outputs["lengths"].values.ravel())) > 1:
            return graph, one, outputs
    raise AssertionError("no seed gives such a case")


class Fixed:
    """A runtime that gives what it was told to."""

    def __init__(self, contract: Contract, outputs: dict[str, Array]) -> None:
        self.contract = contract
        self.outputs = outputs

    def run(self, inputs: Any) -> dict[str, Array]:
        return self.outputs

    def describe(self) -> Description:
        inputs, outputs = (
            {spec.name: (spec.dtype, spec.labels) for spec in part}
            for part in (self.contract.inputs, self.contract.outputs)
        )
        return Description("fixed", "1", inputs, outputs)


def judged(graph: Graph, one: Case, expected: dict[str, Expected], outputs: dict[str, Array]) -> GraphReport:
    run = Run("fixed", lambda path: Fixed(graph.contract, outputs))
    (report,) = verify_file(Path("x"), graph.contract, [one], [expected], [run], format_name="onnx")
    return report


def right(expected: dict[str, Expected]) -> dict[str, Array]:
    """Outputs that pass, as a runtime gives them."""
    return {
        name: item.values.astype(np.float32 if name == "scores" else np.int64).copy() for name, item in expected.items()
    }


def test_a_tied_sentence_is_not_compared_but_the_others_are_and_the_report_says_so() -> None:
    graph, one, expected = mixed()
    ((tied,), others) = expected["tokens"].ties, [i for i in range(4) if i not in expected["tokens"].ties]
    outputs = right(expected)
    outputs["tokens"][tied] = (outputs["tokens"][tied] + 1) % 13
    outputs["scores"][tied] -= 1
    report = judged(graph, one, expected, outputs)
    assert report.passed
    assert report.notes == (f"case 00 (a case): sentence {tied} has two results that tie",)
    outputs["tokens"][others[0]] = (outputs["tokens"][others[0]] + 1) % 13
    report = judged(graph, one, expected, outputs)
    assert not report.passed
    assert f"tokens at [{others[0]}, 0, 0]" in report.findings[0].message


def test_where_all_sentences_tie_nothing_was_compared_and_the_report_fails() -> None:
    graph, (expected,) = referred(twins(30.0), [case({"max_length": 3})])
    report = judged(graph, case({"max_length": 3}), expected, right(expected))
    assert not report.passed
    assert [(finding.check, finding.message) for finding in report.findings] == [("rounding", "nothing was compared")]
    assert "sentence 0, 1, 2" in report.notes[0]


def test_stored_cases_keep_ties_and_still_judge(tmp_path: Path) -> None:
    graph, one, expected = mixed()
    write_stored(tmp_path / "cases.npz", {"greedy": store([one], [expected])})
    stored = read_stored(tmp_path / "cases.npz")["greedy"]
    (kept,) = stored.expected
    for name, item in expected.items():
        assert (kept[name].exact, kept[name].ties, kept[name].pad) == (item.exact, item.ties, item.pad)
        assert kept[name].noise == item.noise
        np.testing.assert_array_equal(np.sort(kept[name].values.ravel()), np.sort(item.values.ravel()))
    outputs = right(expected)
    assert judged(graph, stored.plan[0], dict(kept), outputs).passed
    outputs["tokens"][next(i for i in range(4) if i not in expected["tokens"].ties)] += 1
    assert not judged(graph, stored.plan[0], dict(kept), outputs).passed


# --- what a wrong output fails with ----------------------------------------------------------------------------------

Spoil = Callable[[dict[str, Array]], None]


def _spoilt(**changes: Callable[[Array], Array]) -> Spoil:
    def spoil(outputs: dict[str, Array]) -> None:
        outputs.update({name: change(outputs[name]) for name, change in changes.items()})

    return spoil


def _add(place: tuple[int, ...], value: float) -> Callable[[Array], Array]:
    def change(values: Array) -> Array:
        values[place] += value
        return values

    return change


def _wider(values: Array) -> Array:
    return np.pad(values, [(0, 0), (0, 0), (0, 1)])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_spoilt(tokens=_add((1, 0, 0), 1)), r"tokens at \[1, 0, 0\]: \d+ where the model gives \d+"),
        (_spoilt(lengths=_add((2, 1), 1)), r"lengths at \[2, 1\]: \d+ where the model gives \d+"),
        (_spoilt(scores=_add((0, 0), 0.01)), r"scores at \[0, 0\]: "),
        (_spoilt(tokens=_wider), r"tokens: shape \[3, 2, \d+\], the model gives \[3, 2, \d+\]"),
        (_spoilt(tokens=lambda values: np.where(values == 0, 7, values)), r"tokens at .*: 7 where the model gives 0"),
        (_spoilt(tokens=lambda values: values.astype(np.int32)), r"tokens: dtype int32, the contract says int64"),
        (_spoilt(tokens=lambda values: values[:, :1]), r"tokens: shape \[3, 1, \d+\]"),
        (lambda outputs: outputs.pop("scores") is None or None, r"scores: the runtime did not give this output"),
    ],
    ids=["id", "length", "score", "longer", "padding id", "dtype", "results", "missing"],
)
def test_what_is_wrong_fails_with_a_message_that_can_be_read(spoil: Spoil, words: str) -> None:
    one = case({"max_length": 7, "num_beams": 2, "num_hypotheses": 2}, seed=2)
    graph, (expected,) = referred(build("lively"), [one])
    assert expected["tokens"].ties == ()
    assert (expected["tokens"].values == 0).any()
    outputs = right(expected)
    assert judged(graph, one, expected, outputs).passed
    spoil(outputs)
    report = judged(graph, one, expected, outputs)
    assert not report.passed
    assert any(re.search(words, finding.message) for finding in report.findings), report.findings


def test_a_plan_in_which_no_sentence_ends_is_told_from_one_in_which_some_do() -> None:
    def outputs(*lengths: int) -> dict[str, Expected]:
        return {"lengths": Expected(np.array([lengths], dtype=np.float64), 0.0, exact=True)}

    plan = [Case("00", {"max_length": np.array(5)}, ""), Case("01", {"max_length": np.array(0)}, "", "range")]
    assert endless(plan, [outputs(5, 5), outputs(0)])
    assert not endless(plan, [outputs(5, 4), outputs(1)])
