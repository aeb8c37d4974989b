"""What a search makes of the logits of a step, as ONNX nodes: candidates, those that finish, those that go on.

A round runs for every token, so that a node more here is a node more for each, at 2 to 5 microseconds: what happens
only when a hypothesis finishes stands in a branch, and what depends on lengths alone is hoisted by :class:`Nodes`.

Letters as in :mod:`.onnx_search`; ``C`` chunks of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .nodes import FLOAT, INT, Nodes

# The best of a vocabulary are in those chunks of it whose best are best. Finding them so takes a tenth of the time of
# a TopK over all: 2.7 ns for each logit in onnxruntime, and nothing in it is parallel for few rows.
CHUNK = 64


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

    @property
    def chunks(self) -> int:
        """C."""
        return -(-self.vocabulary // CHUNK)

    def name(self, cache: int) -> str:
        """``key_0``, ``value_0``, ``key_1`` and so on."""
        return f"{('key', 'value')[cache % 2]}_{cache // 2}"


@dataclass(frozen=True)
class Wishes:
    """What the caller wants, each ``[1]``, brought into range.

    Attributes:
        longest, shortest: of a result: M, and the fewest tokens.
        penalty: the exponent of the length.
        beams, results: B and n.
        candidates: K.
    """

    longest: ir.Value
    shortest: ir.Value
    penalty: ir.Value
    beams: ir.Value
    results: ir.Value
    candidates: ir.Value


State = Mapping[str, ir.Value]


def greedy_round(
    op: Nodes, sizes: Sizes, wishes: Wishes, state: State, logits: ir.Value, grown: Sequence[ir.Value]
) -> tuple[ir.Value, dict[str, ir.Value]]:
    """From the logits ``[A, 1, V]`` of a step to whether no sentence ended, and what goes on."""
    chunks = op("Reshape", _scores(op, sizes, logits), op.constant([0, sizes.chunks, CHUNK]))
    which = op("ArgMax", op("ReduceMax", chunks, op.constant([2])), axis=1)  # [A, 1, 1]
    chunk = op("GatherND", chunks, which, batch_dims=1)  # [A, 1, CHUNK]
    start = op("Mul", op("Squeeze", which, op.constant([2])), op.constant(CHUNK))
    token = op("Add", start, op("ArgMax", chunk, axis=2, keepdims=0))  # [A, 1]
    total = op("Add", state["total"], op("ReduceMax", chunk, op.constant([2])))  # [A, 1, 1]
    results = {
        "history": op("Concat", state["history"], op.add_axis(token, 2), axis=2),
        "token": token,
        "total": total,
        **{f"past_{i}": value for i, value in enumerate(grown)},
    }
    return op("Not", op.any(op("Equal", token, op.constant(sizes.eos)))), results


def beam_round(
    op: Nodes, sizes: Sizes, wishes: Wishes, state: State, logits: ir.Value, grown: Sequence[ir.Value]
) -> tuple[ir.Value, dict[str, ir.Value]]:
    """From the logits ``[A, B, V]`` of a step to whether no sentence is done, and what goes on."""
    score, origin, token = _candidates(op, sizes, wishes, state["total"], logits)  # [A, K] each
    taken = op.size(state["history"], 2)  # the start is in it, and so is this step
    last = op("GreaterOrEqual", taken, wishes.longest)
    ends = op("Equal", token, op.constant(sizes.eos))
    finish = op("Or", op.slice(ends, 1, 0, wishes.beams), last)  # [A, B]
    ranks = op("Expand", op.count(wishes.beams), op.shape(op.size(state["cross_0"], 0), 1))
    kept = ("tokens", "lengths", "scores", "kept", "topped", "done")

    def some_finish(op: Nodes) -> Sequence[ir.Value]:
        found = _finished(op, sizes, wishes, state, score, origin, token, taken, last, ends, finish)
        going = op("Not", op.any(found["done"]))
        return [going, _successors(op, wishes, ends, finish, ranks), *(found[name] for name in kept)]

    def none_finish(op: Nodes) -> Sequence[ir.Value]:
        return [op.constant(True, np.bool_), ranks, *(state[name] for name in kept)]

    going, chosen, *values = op.choose("finish", op.any(finish), some_finish, none_finish)
    chosen = op.add_axis(chosen, 2)
    token, origin, score = (op("GatherND", value, chosen, batch_dims=1) for value in (token, origin, score))  # [A, B]
    rows = op.add_axis(origin, 2)
    history = op("GatherND", state["history"], rows, batch_dims=1)
    results = {
        "history": op("Concat", history, op.add_axis(token, 2), axis=2),
        "token": token,
        "total": op.add_axis(score, 2),
        **dict(zip(kept, values, strict=True)),
        **{f"past_{i}": op("GatherND", value, rows, batch_dims=1) for i, value in enumerate(grown)},
    }
    return going, results


def _scores(op: Nodes, sizes: Sizes, logits: ir.Value) -> ir.Value:
    """Log-probabilities, at the end of the vocabulary -inf until its length is that of whole chunks."""
    scores = op("LogSoftmax", logits, axis=-1)
    more = sizes.chunks * CHUNK - sizes.vocabulary
    if not more:
        return scores
    return op("Pad", scores, op.constant([0, 0, 0, 0, 0, more]), op.constant(-np.inf, np.float32))


def _candidates(
    op: Nodes, sizes: Sizes, wishes: Wishes, total: ir.Value, logits: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The K best of ``logits [A, B, V]`` added to ``total [A, B, 1]``: scores, hypotheses and tokens ``[A, K]``.

    Of equal ones the earlier hypothesis, then the smaller id is first: so chunks are put back in their order.
    """
    scores = _scores(op, sizes, logits)
    every = op("Reshape", scores, op.constant([0, 0, sizes.chunks, CHUNK]))
    most = op("Add", op("ReduceMax", every, op.constant([3]), keepdims=0), total)  # [A, B, C]
    count = op("Min", wishes.candidates, op("Mul", wishes.beams, op.constant([sizes.chunks])))
    _, which = op.many(2, "TopK", op("Reshape", most, op.constant([0, -1])), count, axis=1)
    which, _ = op.many(2, "TopK", which, count, axis=1, largest=0)
    place = op.add_axis(which, 2)  # [A, K, 1]
    of = op("Div", place, op.constant(sizes.chunks))
    chunk = op("GatherND", op("Reshape", scores, op.constant([0, -1, CHUNK])), place, batch_dims=1)
    chunk = op("Add", chunk, op("GatherND", total, of, batch_dims=1))  # [A, K, CHUNK]
    flat = op.constant([0, -1])
    score, best = op.many(2, "TopK", op("Reshape", chunk, flat), wishes.candidates, axis=1)
    ids = op("Add", op("Mul", place, op.constant(CHUNK)), op.constant(np.arange(CHUNK)))
    ids = rows_of(op, op("Reshape", ids, flat), best)
    width = op.constant(sizes.chunks * CHUNK)
    return score, op("Div", ids, width), op("Mod", ids, width)


def _finished(
    op: Nodes,
    sizes: Sizes,
    wishes: Wishes,
    state: State,
    score: ir.Value,
    origin: ir.Value,
    token: ir.Value,
    taken: ir.Value,
    last: ir.Value,
    ends: ir.Value,
    finish: ir.Value,
) -> dict[str, ir.Value]:
    """The B best of what each sentence had and of what finishes, and which sentences are done."""

    def first(value: ir.Value) -> ir.Value:
        return op.slice(value, 1, 0, wishes.beams)

    kept = op("Add", state["kept"], op("ReduceSum", op("Cast", finish, to=INT), op.constant([1]), keepdims=0))
    topped = op("Or", state["topped"], op("Squeeze", op.slice(finish, 1, 0, 1), op.constant([1])))
    enough = op("GreaterOrEqual", kept, wishes.beams)
    plain = op("Equal", wishes.penalty, op.constant([0], np.float32))
    early = op("And", topped, op("GreaterOrEqual", kept, wishes.results))
    # Without a penalty on the length, what is best can only get worse.
    enough = op("Or", op("And", plain, early), op("And", op("Not", plain), enough))

    history = rows_of(op, state["history"], first(origin))
    tokens, lengths = results(
        op, sizes, wishes, op("Concat", history, op.add_axis(first(token), 2), axis=2), first(ends), taken
    )
    scores = op("Div", first(score), length_factor(op, wishes, taken))
    scores = op("Where", finish, scores, op.constant(-np.inf, np.float32))
    scores, order = op.many(2, "TopK", op("Concat", state["scores"], scores, axis=1), wishes.beams, axis=1)
    return {
        "tokens": rows_of(op, op("Concat", state["tokens"], tokens, axis=1), order),
        "lengths": rows_of(op, op("Concat", state["lengths"], lengths, axis=1), order),
        "scores": scores,
        "kept": kept,
        "topped": topped,
        "done": op("Or", enough, last),
    }


def _successors(op: Nodes, wishes: Wishes, ends: ir.Value, finish: ir.Value, ranks: ir.Value) -> ir.Value:
    """The B of K candidates that go on: those of the first B that do not finish, and spare ones in place of others."""
    ended = op("Cast", op.slice(ends, 1, wishes.beams, wishes.candidates), to=INT)
    key = op("Add", op("Mul", ended, wishes.beams), ranks)  # the spare ones that do not end come first, in order
    _, spare = op.many(2, "TopK", key, wishes.beams, axis=1, largest=0)
    turn = op("CumSum", op("Cast", finish, to=INT), op.constant(1))  # 1 for the first that finishes, then 2
    nth = op("Max", op("Sub", turn, op.constant(1)), op.constant(0))
    return op("Where", finish, op("Add", rows_of(op, spare, nth), wishes.beams), ranks)


def results(
    op: Nodes, sizes: Sizes, wishes: Wishes, history: ir.Value, ends: ir.Value, taken: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Tokens ``[A, B, M]`` and lengths ``[A, B]`` of hypotheses ``[A, B, P + 1]``, some of which end with the end."""
    lengths = op("Sub", taken, op("Cast", ends, to=INT))
    tokens = op.slice(history, 2, 1)  # without the start
    tokens = op("Where", op("Less", op.count(taken), op.add_axis(lengths, 2)), tokens, op.constant(sizes.pad))
    more = op.shape(0, 0, 0, 0, 0, op("Sub", wishes.longest, taken))
    return op("Pad", tokens, more, op.constant(sizes.pad)), lengths


def length_factor(op: Nodes, wishes: Wishes, taken: ir.Value) -> ir.Value:
    """What the scores of results of ``taken`` steps are divided by."""
    return op("Pow", op("Cast", taken, to=FLOAT), wishes.penalty)


def rows_of(op: Nodes, value: ir.Value, index: ir.Value) -> ir.Value:
    """``value [A, X, …]``, ``index [A, Y]`` -> ``[A, Y, …]``."""
    return op("GatherND", value, op.add_axis(index, 2), batch_dims=1)
