"""Greedy and beam search as ONNX loops around the cached step: standard operators only, opset 18 and up.

What the search does is written in :mod:`mytx.models.search`; this is the same for graphs. Two loops, one inside the
other: the inner one goes on, a step at a time, until some sentence is finished; the outer one then takes finished
sentences out of the batch. So they cost nothing from there on, and in between nothing is copied for that.

Letters: ``N`` sentences, ``A`` of them alive, ``B`` beams, ``W`` hypotheses of each (1, after a step B), ``K``
candidates (2 B; greedy 1), ``M`` the longest result allowed, ``n`` results wanted, ``P`` steps done, ``F`` candidates
that finish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .onnx_nodes import BOOL, FLOAT, INT, Nodes, Part


@dataclass(frozen=True)
class Sizes:
    """What a search must know of the model.

    Attributes:
        layers, heads, head_dim, vocabulary, positions: of the decoder.
        bos, eos, pad: special ids.
    """

    layers: int
    heads: int
    head_dim: int
    vocabulary: int
    positions: int
    bos: int
    eos: int
    pad: int

    @property
    def caches(self) -> range:
        """Numbers of the keys (even) and values (odd)."""
        return range(2 * self.layers)


@dataclass(frozen=True)
class Wishes:
    """What the caller wants, each ``[1]``, brought into range.

    Attributes:
        longest, shortest: of a result: M, and the fewest tokens.
        penalty: the exponent of the length.
        beams, results: B and n.
        candidates: K.
        never: ``[V]``, to add to logits where the end is not allowed.
    """

    longest: ir.Value
    shortest: ir.Value
    penalty: ir.Value
    beams: ir.Value
    results: ir.Value
    candidates: ir.Value
    never: ir.Value


def add_search(
    op: Nodes,
    sizes: Sizes,
    step: Part,
    inputs: Mapping[str, ir.Value],
    cross: Sequence[ir.Value],
    initializers: dict[str, ir.Value],
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Append a search; greedy where ``inputs`` has no ``num_beams``.

    Args:
        op: where it stands.
        sizes: of the model.
        step: takes ``tgt [A, W]``, ``src_key_padding_mask [A, S]``, ``cross_i`` and ``past_i``; gives logits
            ``[A, W, V]`` and the grown past.
        inputs: ``src_key_padding_mask [N, S]`` and single numbers: ``max_length``, ``min_length``,
            ``length_penalty``, and for beams ``num_beams`` and ``num_hypotheses``. What is out of range is brought
            into it.
        cross: keys ``[N, H, D, S]`` and values ``[N, H, S, D]`` of the memory, for each layer one after the other.
        initializers: of the graph, by name; the step's are added.

    Returns:
        Tokens ``[N, n, L]``, lengths ``[N, n]`` and scores ``[N, n]``.
    """
    beams = "num_beams" in inputs
    wishes = _wishes(op, sizes, inputs)
    kinds: dict[str, tuple[ir.DataType, int]] = {
        "history": (INT, 3),
        "total": (FLOAT, 2),
        "tokens": (INT, 3),
        "lengths": (INT, 2),
        "scores": (FLOAT, 2),
        "kept": (INT, 1),
        "topped": (BOOL, 1),
        "done": (BOOL, 1),
        **{f"past_{i}": (FLOAT, 5) for i in sizes.caches},
    }
    all_kinds = {**kinds, "alive": (INT, 1), "padding": (BOOL, 2), **{f"cross_{i}": (FLOAT, 4) for i in sizes.caches}}
    trips = op.scalar(wishes.longest)

    def phase(op: Nodes, state: dict[str, ir.Value]) -> tuple[ir.Value, dict[str, ir.Value]]:
        """Steps until a sentence is finished; then it leaves."""

        def one_step(op: Nodes, inner: dict[str, ir.Value]) -> tuple[ir.Value, dict[str, ir.Value]]:
            given = {f"cross_{i}": state[f"cross_{i}"] for i in sizes.caches}
            given |= {f"past_{i}": inner[f"past_{i}"] for i in sizes.caches}
            given["src_key_padding_mask"] = state["padding"]
            given["tgt"] = op("Squeeze", op.slice(inner["history"], 2, -1), op.constant([2]))  # [A, W]
            logits, *grown = step.inline(op, given, initializers)
            results = _choose(op, sizes, wishes, inner, state["alive"], logits, grown, beams)
            return op("Not", op.any(results["done"])), results

        after = op.loop("steps", trips, {name: state[name] for name in kinds}, kinds, one_step)
        left = op("Squeeze", op("NonZero", op("Not", after["done"])), op.constant([0]))
        following = {name: after[name] for name in ("tokens", "lengths", "scores")}
        staying = {name: after[name] for name in kinds if name not in following}
        staying |= {name: state[name] for name in all_kinds if name not in kinds}
        following |= {name: op("Gather", value, left, axis=0) for name, value in staying.items()}
        return op("Greater", op.scalar(op.size(left, 0)), op.constant(0)), following

    first = _start(op, sizes, wishes, inputs["src_key_padding_mask"], cross, beams)
    some = op("Greater", op.scalar(op.size(first["padding"], 0)), op.constant(0))
    end = op.loop("phases", trips, first, all_kinds, phase, some)
    tokens, lengths, scores = end["tokens"], end["lengths"], end["scores"]
    if beams:
        scores, order = op.many(2, "TopK", scores, wishes.results, axis=1)
        lengths = op("GatherElements", lengths, order, axis=1)
        tokens = _rows(op, tokens, order)
    most = op(
        "ReduceMax", op("Concat", op("Reshape", lengths, op.constant([-1])), op.constant([0]), axis=0), keepdims=1
    )
    return op.slice(tokens, 2, 0, most), lengths, scores


def _wishes(op: Nodes, sizes: Sizes, inputs: Mapping[str, ir.Value]) -> Wishes:
    def number(name: str) -> ir.Value:
        return op("Reshape", inputs[name], op.constant([1]))

    one = op.constant([1])
    longest = op("Max", op("Min", number("max_length"), op.constant([sizes.positions])), one)
    beams = results = candidates = one
    if "num_beams" in inputs:
        beams = op("Max", op("Min", number("num_beams"), op.constant([sizes.vocabulary // 2])), one)
        results = op("Max", op("Min", number("num_hypotheses"), beams), one)
        candidates = op("Mul", beams, op.constant([2]))
    zeros = op.filled(0, np.float32, sizes.vocabulary)
    never = op("ScatterElements", zeros, op.constant([sizes.eos]), op.constant([-np.inf], np.float32), axis=0)
    shortest = op("Min", number("min_length"), longest)
    return Wishes(longest, shortest, number("length_penalty"), beams, results, candidates, never)


def _start(
    op: Nodes, sizes: Sizes, wishes: Wishes, padding: ir.Value, cross: Sequence[ir.Value], beams: bool
) -> dict[str, ir.Value]:
    """What goes into the first round."""
    batch = op.size(padding, 0)
    slots = wishes.beams  # results of a sentence: no more are asked for
    state = {
        "history": op.filled(sizes.bos, np.int64, batch, 1, 1),
        "total": op.filled(0, np.float32, batch, 1),
        "tokens": op.filled(sizes.pad, np.int64, batch, slots, wishes.longest),
        "lengths": op.filled(0, np.int64, batch, slots),
        "scores": op.filled(-np.inf, np.float32, batch, slots),
        "kept": op.filled(0, np.int64, batch),
        "topped": op.filled(False, np.bool_, batch),
        "done": op.filled(False, np.bool_, batch),
    }
    for i in sizes.caches:
        tail = (sizes.head_dim, 0) if i % 2 == 0 else (0, sizes.head_dim)
        state[f"past_{i}"] = op.filled(0, np.float32, batch, 1, sizes.heads, *tail)
    state |= {"alive": op.count(batch), "padding": padding}
    return state | {f"cross_{i}": value for i, value in enumerate(cross)}


def _choose(
    op: Nodes,
    sizes: Sizes,
    wishes: Wishes,
    state: Mapping[str, ir.Value],
    alive: ir.Value,
    logits: ir.Value,
    grown: Sequence[ir.Value],
    beams: bool,
) -> dict[str, ir.Value]:
    """What comes of the logits ``[A, W, V]`` of a step: candidates, those that finish, those that go on."""
    history = state["history"]  # [A, W, P + 1], the start included
    batch, width, taken = (op.size(history, axis) for axis in range(3))  # with this step P + 1 are done
    last = op("GreaterOrEqual", taken, wishes.longest)
    count = wishes.candidates

    def best(op: Nodes, values: ir.Value) -> Sequence[ir.Value]:
        return op.many(2, "TopK", op("LogSoftmax", values, axis=-1), count, axis=-1)

    too_short = op("LessOrEqual", taken, wishes.shortest)
    added, token = op.choose(
        "best", op.scalar(too_short), lambda op: best(op, op("Add", logits, wishes.never)), lambda op: best(op, logits)
    )  # [A, W, K] each: the K best of all are among the K best of each
    flat = op.shape(batch, -1)
    score = op("Reshape", op("Add", op.add_axis(state["total"], 2), added), flat)
    token = op("Reshape", token, flat)
    origin = None
    if beams:
        score, place = op.many(2, "TopK", score, count, axis=1)  # [A, K]
        token = op("GatherElements", token, place, axis=1)
        origin = op("Div", place, count)
        history = _rows(op, history, origin)
    history = op("Concat", history, op.add_axis(token, 2), axis=2)  # [A, K, P + 2]
    ends = op("Equal", token, op.constant(sizes.eos))
    finish = op("Or", op.slice(ends, 1, 0, wishes.beams) if beams else ends, last)  # [A, B]
    turn = op("CumSum", op("Cast", finish, to=INT), op.constant(1))  # 1 for the first that finishes, then 2
    kept = op("Add", state["kept"], op("ReduceSum", op("Cast", finish, to=INT), op.constant([1]), keepdims=0))
    topped = op("Or", state["topped"], op("Squeeze", op.slice(finish, 1, 0, 1), op.constant([1])))
    enough = op("GreaterOrEqual", kept, wishes.beams)
    if beams:  # without a penalty on the length, what is best can only get worse
        plain = op("Equal", wishes.penalty, op.constant([0], np.float32))
        early = op("And", topped, op("GreaterOrEqual", kept, wishes.results))
        enough = op("Or", op("And", plain, early), op("And", op("Not", plain), enough))

    def store(op: Nodes) -> Sequence[ir.Value]:
        """The B best of what each sentence had and of what finishes."""
        ended = op("Cast", op.slice(ends, 1, 0, wishes.beams), to=INT)
        length = op("Sub", taken, ended)  # [A, B], without the end
        found = op.slice(op.slice(history, 1, 0, wishes.beams), 2, 1)  # [A, B, P + 1], without the start
        real = op("Less", op.count(taken), op.add_axis(length, 2))
        found = op("Where", real, found, op.constant(sizes.pad))
        more = op("Sub", wishes.longest, taken)
        found = op("Pad", found, op.shape(0, 0, 0, 0, 0, more), op.constant(sizes.pad))
        power = op("Pow", op("Cast", taken, to=FLOAT), wishes.penalty)
        final = op("Div", op.slice(score, 1, 0, wishes.beams), power)
        final = op("Where", finish, final, op.constant(-np.inf, np.float32))

        def both(name: str, new: ir.Value) -> ir.Value:
            return op("Concat", op("Gather", state[name], alive, axis=0), new, axis=1)

        final, order = op.many(2, "TopK", both("scores", final), wishes.beams, axis=1)
        length = op("GatherElements", both("lengths", length), order, axis=1)
        found = _rows(op, both("tokens", found), order)
        target = op.add_axis(alive, 1)
        values = {"tokens": found, "lengths": length, "scores": final}
        return [op("ScatterND", state[name], target, value) for name, value in values.items()]

    names = ("tokens", "lengths", "scores")
    stored = op.choose("store", op.any(finish), store, lambda op: [state[name] for name in names])
    results = dict(zip(names, stored, strict=True))
    results |= {"kept": kept, "topped": topped, "done": op("Or", enough, last)}
    if origin is None:
        going = {"total": score, "history": history}
        return results | going | {f"past_{i}": value for i, value in enumerate(grown)}
    return results | _follow(op, wishes, batch, width, score, history, origin, ends, finish, turn, grown)


def _follow(
    op: Nodes,
    wishes: Wishes,
    batch: ir.Value,
    width: ir.Value,
    score: ir.Value,
    history: ir.Value,
    origin: ir.Value,
    ends: ir.Value,
    finish: ir.Value,
    turn: ir.Value,
    grown: Sequence[ir.Value],
) -> dict[str, ir.Value]:
    """The B candidates that go on: those of the first B that do not finish, and spare ones in place of the others."""
    ranks = op.count(wishes.beams)
    ended = op("Cast", op.slice(ends, 1, wishes.beams, wishes.candidates), to=INT)
    key = op("Add", op("Mul", ended, wishes.beams), ranks)  # the spare ones that do not end come first, in order
    _, spare = op.many(2, "TopK", key, wishes.beams, axis=1, largest=0)
    nth = op("Max", op("Sub", turn, op.constant(1)), op.constant(0))
    successor = op("Where", finish, op("Add", op("GatherElements", spare, nth, axis=1), wishes.beams), ranks)
    came_from = op("GatherElements", origin, successor, axis=1)  # [A, B], of W
    offset = op("Mul", op.count(batch), width)
    rows = op("Reshape", op("Add", came_from, op.add_axis(offset, 1)), op.constant([-1]))
    results = {"total": op("GatherElements", score, successor, axis=1), "history": _rows(op, history, successor)}
    for i, cache in enumerate(grown):  # [A, W, H, ., .]
        tail = [op.size(cache, axis) for axis in (2, 3, 4)]
        chosen = op("Gather", op("Reshape", cache, op.shape(-1, *tail)), rows, axis=0)
        results[f"past_{i}"] = op("Reshape", chosen, op.shape(batch, wishes.beams, *tail))
    return results


def _rows(op: Nodes, value: ir.Value, index: ir.Value) -> ir.Value:
    """``value [A, X, T]``, ``index [A, Y]`` -> ``[A, Y, T]``."""
    length = op.size(value, 2)
    wide = op("Expand", op.add_axis(index, 2), op.shape(op.constant([1]), op.constant([1]), length))
    return op("GatherElements", value, wide, axis=1)
