"""Runtimes that give something else than the file computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fault import Fault, found_by
from mytx.exporter.cases.case import Array
from mytx.exporter.runtimes.run import Run
from mytx.exporter.runtimes.runtime import Description, Runtime
from subject import Subject

Outputs = dict[str, Array]
Spoil = Callable[[Mapping[str, Array], Outputs], Outputs]
INTERFACE = found_by("interface")
UNCOMPARED = found_by("interface", "rounding", "structure")  # no case has an output that can be compared
FLOAT64 = found_by("interface", "rounding")  # the check of structure is in float64 itself
VALUES = found_by("rounding", "structure")
RUNTIME = found_by("runtime", "rounding", "structure")
CASES = 41  # in the standard plan of a decoder


class Faulty:
    """A runtime whose outputs go through ``spoil``."""

    def __init__(self, inner: Runtime, spoil: Spoil) -> None:
        self.inner = inner
        self.spoil = spoil

    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        return self.spoil(inputs, self.inner.run(inputs))

    def describe(self) -> Description:
        return self.inner.describe()


def spoilt(make: Callable[[], Spoil], chosen: Callable[[Run], bool] = lambda run: True) -> Callable[[Subject], None]:
    """Each runtime of the chosen runs has a fault of its own."""
    return lambda subject: subject.wrap_runtimes(lambda inner: Faulty(inner, make()), chosen)


def simple(function: Callable[[Array], Array]) -> Callable[[Subject], None]:
    """The same fault in every case, in the one output."""
    return spoilt(lambda: lambda _, outputs: {"logits": function(outputs["logits"])})


# --- those that remember ---------------------------------------------------------------------------------------------


class Stale:
    """Gives what it gave before, as a runtime does that hands out its buffer."""

    def __init__(self) -> None:
        self.before: dict[tuple[int, ...], Outputs] = {}

    def __call__(self, inputs: Mapping[str, Array], outputs: Outputs) -> Outputs:
        return self.before.setdefault(outputs["logits"].shape, outputs)


class OneCallLate:
    """Gives the outputs of the call before, where they have the shape."""

    def __init__(self) -> None:
        self.before: dict[tuple[int, ...], Outputs] = {}

    def __call__(self, inputs: Mapping[str, Array], outputs: Outputs) -> Outputs:
        shape = outputs["logits"].shape
        late, self.before[shape] = self.before.get(shape, outputs), outputs
        return late


class OneBuffer:
    """All outputs of a shape are in the same memory: right when they are given, wrong when they are looked at."""

    def __init__(self) -> None:
        self.buffers: dict[tuple[int, ...], Array] = {}

    def __call__(self, inputs: Mapping[str, Array], outputs: Outputs) -> Outputs:
        logits = outputs["logits"]
        buffer = self.buffers.setdefault(logits.shape, np.empty_like(logits))
        buffer[...] = logits
        return {"logits": buffer}


class Remembers:
    """A cache of results whose key lacks an input: only the same call with another of that input tells."""

    def __init__(self, forgotten: str) -> None:
        self.forgotten = forgotten
        self.results: dict[tuple[tuple[str, bytes], ...], Outputs] = {}

    def __call__(self, inputs: Mapping[str, Array], outputs: Outputs) -> Outputs:
        key = tuple((name, array.tobytes()) for name, array in inputs.items() if name != self.forgotten)
        return self.results.setdefault(key, outputs)


class Until:
    """Wrong until the last case, or in the last case alone: a verifier that keeps one result would not notice."""

    def __init__(self, last_is_wrong: bool) -> None:
        self.left = CASES - 1
        self.last_is_wrong = last_is_wrong

    def __call__(self, inputs: Mapping[str, Array], outputs: Outputs) -> Outputs:
        self.left -= 1
        wrong = (self.left < 0) == self.last_is_wrong
        return {"logits": np.zeros_like(outputs["logits"])} if wrong else outputs


# --- those that do not -----------------------------------------------------------------------------------------------


def first_sentence_for_all(logits: Array) -> Array:
    return np.broadcast_to(logits[:1], logits.shape)


def one_sentence_alone(logits: Array) -> Array:
    return logits[:1]


def sentences_turned(logits: Array) -> Array:
    return np.ascontiguousarray(logits[::-1])


def one_nan(logits: Array) -> Array:
    logits.flat[-1] = np.nan
    return logits


def infinite(logits: Array) -> Array:
    return np.where(logits == logits.max(), np.inf, logits).astype(logits.dtype)


def one_value_off(logits: Array) -> Array:
    """The last position of the last sentence, in one score."""
    logits.flat[-1] += 0.01
    return logits


def large_batches_wrong(logits: Array) -> Array:
    """A kernel for four sentences at a time that forgets the rest."""
    rest = np.arange(len(logits))[:, None, None] >= 4
    return np.where(rest, 0, logits).astype(logits.dtype)


def one_more(_: Mapping[str, Array], outputs: Outputs) -> Outputs:
    return {**outputs, "scores": outputs["logits"]}


def crash(_: Mapping[str, Array], outputs: Outputs) -> Outputs:
    raise RuntimeError("out of memory")


def crash_when_long(inputs: Mapping[str, Array], outputs: Outputs) -> Outputs:
    if inputs["tgt"].shape[1] > 50:
        raise RuntimeError("out of memory")
    return outputs


def padding_read(inputs: Mapping[str, Array], outputs: Outputs) -> Outputs:
    """What stands behind the padding is added in: a kernel that rounds lengths up."""
    hidden = inputs["tgt_key_padding_mask"]
    leak = np.where(hidden, inputs["tgt"], 0).sum(1)[:, None, None] * 1e-3
    return {"logits": (outputs["logits"] + leak).astype(outputs["logits"].dtype)}


def noisy() -> Spoil:
    rng = np.random.default_rng(0)

    def spoil(_: Mapping[str, Array], outputs: Outputs) -> Outputs:
        logits = outputs["logits"]
        return {"logits": logits + rng.normal(0, 1e-3, logits.shape).astype(logits.dtype)}

    return spoil


def _row(name: str, plant: Callable[[Subject], None], checks: frozenset[str] = VALUES, **more: object) -> Fault:
    return Fault(name, "runtime", plant, checks, **more)  # type: ignore[arg-type]


def only(*names: str) -> Callable[[Run], bool]:
    return lambda run: run.runtime in names


def wrong_in(run: str) -> Callable[[Subject], None]:
    """One way to run the file gives something else than the others."""
    return spoilt(lambda: lambda _, outputs: {"logits": one_value_off(outputs["logits"])}, only(run))


FAULTS = [
    _row("stale outputs", spoilt(Stale)),
    _row("the outputs of the call before", spoilt(OneCallLate)),
    _row("one buffer for all outputs", spoilt(OneBuffer)),
    *(
        _row(f"a cache that forgets {name}", spoilt(lambda name=name: Remembers(name)))
        for name in ("tgt", "memory", "tgt_key_padding_mask", "memory_key_padding_mask")
    ),
    _row("wrong in every case but the last", spoilt(lambda: Until(last_is_wrong=False))),
    _row("wrong in the last case alone", spoilt(lambda: Until(last_is_wrong=True)), found_by("rounding")),
    _row("an output cut short", simple(lambda logits: logits[:, :-1]), UNCOMPARED),
    _row("an output of one sentence", simple(one_sentence_alone), INTERFACE),
    _row("an output without elements", simple(lambda logits: logits[:0]), UNCOMPARED),
    _row("no output", spoilt(lambda: lambda _, outputs: {}), UNCOMPARED),
    _row(
        "one output more",
        spoilt(lambda: one_more),
        INTERFACE,
        small=True,
    ),
    _row("an output of integers", simple(lambda logits: logits.astype(np.int64)), UNCOMPARED),
    _row("an output of float64", simple(lambda logits: logits.astype(np.float64)), FLOAT64, small=True),
    _row("the first sentence for all", simple(first_sentence_for_all)),
    _row("the sentences in another order", simple(sentences_turned)),
    _row("one NaN", simple(one_nan)),
    _row("one infinity", simple(infinite)),
    _row("one value off by 0.01", simple(one_value_off)),
    _row("zeros", simple(np.zeros_like)),
    _row("other numbers in each run", spoilt(noisy)),
    _row("nothing right behind the fourth sentence", simple(large_batches_wrong)),
    _row("content behind padding is read", spoilt(lambda: padding_read)),
    _row("a crash", spoilt(lambda: crash), RUNTIME),
    _row("a crash on long sentences", spoilt(lambda: crash_when_long), found_by("runtime")),
    _row("wrong with several threads alone", wrong_in("onnxruntime"), found_by("rounding")),
    _row("wrong on one thread alone", wrong_in("onnxruntime, 1 thread"), found_by("rounding")),
    *(
        _row(
            f"wrong at level {level} alone",
            wrong_in(f"onnxruntime, level {level}"),
            found_by("rounding"),
        )
        for level in ("extended", "basic", "off")
    ),
]
