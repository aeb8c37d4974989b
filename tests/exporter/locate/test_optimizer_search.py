"""The search for the rewrite that makes a file wrong, with simulated rewrites: one, several together, or none."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from mytx.exporter.cases.case import Array
from mytx.exporter.locate.optimizer import OptimizerFault, blame_optimizer
from mytx.exporter.parity.compare import Expected
from mytx.exporter.runtimes.onnxruntime import LEVELS, RuntimeOptions
from mytx.exporter.runtimes.runtime import Description
from optimizer_cases import CASES, CONTRACT


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
