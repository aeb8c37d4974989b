"""How long a proof will take is said beforehand, from one run and the weights, and corrected by what was done."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from exported_models import Exported
from mytx.exporter.parity import forecast as module
from mytx.exporter.parity.forecast import RUNS, Forecast


class Clock:
    """Each run of PyTorch takes a second: that is how often it is looked at meanwhile."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_in_words", lambda seconds: f"{seconds:.0f} s")


def seconds(said: str) -> float:
    assert said.startswith(", about ")
    assert said.endswith(" s left")
    return float(said.split()[2])


def sizes(exported: Exported) -> dict[str, int]:
    return {name: sum(array.nbytes for array in exported.weights(name).values()) for name in exported.graphs}


@pytest.mark.usefixtures("in_seconds")
@pytest.mark.parametrize("level", RUNS)
def test_beforehand_it_goes_by_a_run_and_the_weights(level: str, translation: Exported) -> None:
    found = Forecast(translation.graphs, level, Clock())
    weights = sizes(translation)
    assert seconds(found.left("encoder")) == pytest.approx(RUNS[level] * sum(weights.values()) / weights["full"], abs=1)


@pytest.mark.usefixtures("in_seconds")
def test_what_took_longer_than_was_said_makes_the_rest_longer(translation: Exported) -> None:
    def rest(elapsed: float) -> float:
        clock = Clock()
        found = Forecast(translation.graphs, "standard", clock)
        clock.now += elapsed
        return seconds(found.left("full"))

    slow, expected, fast = (rest(elapsed) for elapsed in (10_000, RUNS["standard"], 1))
    assert slow > expected > fast > 0


def test_of_what_takes_seconds_nothing_is_said(translation: Exported) -> None:
    found = Forecast(translation.graphs, "standard", lambda: 5.0)
    assert [found.left(name) for name in translation.graphs] == ["", "", ""]


def test_searches_alone_are_not_foreseen_but_known_once_one_is_done(exports: Callable[[str], Exported]) -> None:
    every = exports("lively").every
    clock = Clock()
    found = Forecast({name: every[name] for name in ("greedy", "generate")}, "standard", clock)
    assert found.left("greedy") == ""
    clock.now += 400
    assert found.left("generate") == ", about 3 min left"


def test_minutes_are_said_in_minutes() -> None:
    assert [module._in_words(each) for each in (10.4, 89, 91, 600)] == ["10 s", "89 s", "2 min", "10 min"]
