"""How long a proof will take: said before it begins, and corrected by what is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from torch import Tensor

from ..cases.plan import example
from ..graphs.graph import Graph
from ..graphs.running import run_graph
from .reference import threads_for

# A proof of a graph takes as long as so many of its runs in PyTorch, references and all ways to run the file together:
# measured on the demo and on the small preset. It foresees small within a tenth; the demo, whose single run takes
# milliseconds, within two thirds; base within a third. Each run of a large model takes the time to read its weights.
RUNS = {"quick": 300, "standard": 350, "thorough": 700}
WORTH_SAYING = 10.0  # seconds


class Forecast:
    """Times a run of the largest graph that does not search, and then tells how long the rest will take.

    Args:
        graphs: that are to be proven, in this order.
        level: of the plan.
        clock: gives seconds.
    """

    def __init__(self, graphs: Mapping[str, Graph], level: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._bytes = {name: sum(map(_nbytes, graph.weights().values())) for name, graph in graphs.items()}
        plain = [name for name, graph in graphs.items() if not graph.contract.searches]
        self._rate = 0.0  # seconds for a byte of weights
        if plain:
            largest = max(plain, key=self._bytes.__getitem__)
            self._rate = RUNS[level] * self._run(graphs[largest]) / max(1, self._bytes[largest])
        self._begun = clock()

    def left(self, name: str) -> str:
        """What to say at the beginning of a graph: empty, or like ``, about 2 min left``."""
        sizes = list(self._bytes.values())
        place = list(self._bytes).index(name)
        done, rest = sum(sizes[:place]), sum(sizes[place:])
        elapsed = self._clock() - self._begun
        # What is done tells more than a single run, the more there is of it.
        seconds = rest * (elapsed + self._rate * rest) / max(1, done + rest) if done else self._rate * rest
        return f", about {_in_words(seconds)} left" if seconds >= WORTH_SAYING else ""

    def _run(self, graph: Graph) -> float:
        """Seconds of the second of two runs."""
        inputs = example(graph.contract).inputs
        seconds = 0.0
        with threads_for(graph.module.model):
            for _ in range(2):
                begun = self._clock()
                run_graph(graph, inputs, lambda tensor: tensor)
                seconds = self._clock() - begun
        return seconds


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
