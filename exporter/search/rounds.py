"""A round of a search as ONNX nodes: from the logits of a step to the candidates, and to those that finish or go on.

Each node here runs once per token and takes 2 to 5 microseconds. So work that is only needed when a hypothesis finishes
is in a branch, and :class:`Nodes` hoists what depends on lengths alone.

Letters as in :mod:`.loops`; ``C`` chunks of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .nodes import FLOAT, INT, Nodes

# The k best tokens are in the k chunks of the vocabulary with the highest maxima. Searching chunks first takes a tenth
# of the time of a TopK over all logits, which takes 2.7 ns per logit in onnxruntime, and one thread if rows are few.
CHUNK = 64


@dataclass(frozen=True)
class Sizes:
    """Sizes and special ids of the model.

    Attributes:
        layers: number of decoder layers.
        heads, head_dim: number and size of the attention heads.
        vocabulary: number of target ids.
        positions: the longest target.
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
        """Indices of the caches: keys are even, values odd."""
        return range(2 * self.layers)

    @property
    def chunks(self) -> int:
        """C, the number of chunks of the vocabulary; the last may be shorter."""
        return -(-self.vocabulary // CHUNK)

    def name(self, cache: int) -> str:
        """The name of a cache by its index: ``key_0``, ``value_0``, ``key_1`` and so on."""
        return f"{('key', 'value')[cache % 2]}_{cache // 2}"


@dataclass(frozen=True)
class Options:
    """The search options as values in the graph, each ``[1]`` and in range.

    Attributes:
        longest: M, the most tokens of a result, with the end token.
        shortest: the fewest tokens of a result, without the end token.
        penalty: the exponent of the length.
        beams: B.
        results: n, the number of results per sentence.
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
    op: Nodes, sizes: Sizes, options: Options, state: State, logits: ir.Value, grown: Sequence[ir.Value]
) -> tuple[ir.Value, dict[str, ir.Value]]:
    """From the logits ``[A, 1, V]`` of a step to whether no sentence ended, and the state after the step.

    Args:
        op: the graph to append to.
        sizes: sizes of the model.
        options: the search options.
        state: the state before the step, by name.
        logits: the output of the step.
        grown: the past with the new position, keys and values of each layer.
    """
    chunks = op("Reshape", _scores(op, sizes, logits), op.constant([0, sizes.chunks, CHUNK]))
    which = op("ArgMax", op("ReduceMax", chunks, op.constant([2])), axis=1)  # [A, 1, 1]
    chunk = op("GatherND", chunks, which, batch_dims=1)  # [A, 1, CHUNK]
    start = op("Mul", op("Squeeze", which, op.constant([2])), op.constant(CHUNK))
    token = op("Add", start, op("ArgMax", chunk, axis=2, keepdims=0))  # [A, 1]
    total = op("Add", state["total"], op("ReduceMax", chunk, op.constant([2])))  # [A, 1, 1]
    after = {
        "history": op("Concat", state["history"], op.add_axis(token, 2), axis=2),
        "token": token,
        "total": total,
        **{f"past_{i}": value for i, value in enumerate(grown)},
    }
    return op("Not", op.any(op("Equal", token, op.constant(sizes.eos)))), after


def beam_round(
    op: Nodes, sizes: Sizes, options: Options, state: State, logits: ir.Value, grown: Sequence[ir.Value]
) -> tuple[ir.Value, dict[str, ir.Value]]:
    """From the logits ``[A, B, V]`` of a step to whether no sentence is done, and the state after the step.

    Arguments as for :func:`greedy_round`.
    """
    score, origin, token = _candidates(op, sizes, options, state["total"], logits)  # [A, K] each
    taken = op.size(state["history"], 2)  # steps with this one: the history has the start id, but not this step
    last = op("GreaterOrEqual", taken, options.longest)
    ends = op("Equal", token, op.constant(sizes.eos))
    finish = op("Or", op.slice(ends, 1, 0, options.beams), last)  # [A, B]
    ranks = op("Expand", op.count(options.beams), op.shape(op.size(state["cross_0"], 0), 1))
    unchanged = ("tokens", "lengths", "scores", "kept", "topped", "done")  # unless a hypothesis finishes

    def some_finish(op: Nodes) -> Sequence[ir.Value]:
        found = _finished(op, sizes, options, state, score, origin, token, taken, last, ends, finish)
        going = op("Not", op.any(found["done"]))
        return [going, _successors(op, options, ends, finish, ranks), *(found[name] for name in unchanged)]

    def none_finish(op: Nodes) -> Sequence[ir.Value]:
        return [op.constant(True, np.bool_), ranks, *(state[name] for name in unchanged)]

    going, chosen, *values = op.choose("finish", op.any(finish), some_finish, none_finish)
    chosen = op.add_axis(chosen, 2)
    token, origin, score = (op("GatherND", value, chosen, batch_dims=1) for value in (token, origin, score))  # [A, B]
    rows = op.add_axis(origin, 2)
    history = op("GatherND", state["history"], rows, batch_dims=1)
    after = {
        "history": op("Concat", history, op.add_axis(token, 2), axis=2),
        "token": token,
        "total": op.add_axis(score, 2),
        **dict(zip(unchanged, values, strict=True)),
        **{f"past_{i}": op("GatherND", value, rows, batch_dims=1) for i, value in enumerate(grown)},
    }
    return going, after


def _scores(op: Nodes, sizes: Sizes, logits: ir.Value) -> ir.Value:
    """Log-probabilities, with -inf appended to the vocabulary up to a whole number of chunks."""
    scores = op("LogSoftmax", logits, axis=-1)
    more = sizes.chunks * CHUNK - sizes.vocabulary
    if not more:
        return scores
    return op("Pad", scores, op.constant([0, 0, 0, 0, 0, more]), op.constant(-np.inf, np.float32))


def _candidates(
    op: Nodes, sizes: Sizes, options: Options, total: ir.Value, logits: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The K candidates with the highest scores: ``total [A, B, 1]`` and the log-softmax of ``logits [A, B, V]``.

    Equal scores are ranked by hypothesis, then by id. So the best chunks are sorted by place before the last TopK.

    Returns:
        Scores, hypotheses and tokens, ``[A, K]`` each.
    """
    scores = _scores(op, sizes, logits)
    every = op("Reshape", scores, op.constant([0, 0, sizes.chunks, CHUNK]))
    most = op("Add", op("ReduceMax", every, op.constant([3]), keepdims=0), total)  # [A, B, C]
    count = op("Min", options.candidates, op("Mul", options.beams, op.constant([sizes.chunks])))
    _, which = op.many(2, "TopK", op("Reshape", most, op.constant([0, -1])), count, axis=1)
    which, _ = op.many(2, "TopK", which, count, axis=1, largest=0)  # back in order
    place = op.add_axis(which, 2)  # [A, K, 1], among the B * C chunks of a sentence
    hypothesis = op("Div", place, op.constant(sizes.chunks))
    chunk = op("GatherND", op("Reshape", scores, op.constant([0, -1, CHUNK])), place, batch_dims=1)
    chunk = op("Add", chunk, op("GatherND", total, hypothesis, batch_dims=1))  # [A, K, CHUNK]
    flat = op.constant([0, -1])
    score, best = op.many(2, "TopK", op("Reshape", chunk, flat), options.candidates, axis=1)
    ids = op("Add", op("Mul", place, op.constant(CHUNK)), op.constant(np.arange(CHUNK)))
    ids = rows_of(op, op("Reshape", ids, flat), best)
    width = op.constant(sizes.chunks * CHUNK)
    return score, op("Div", ids, width), op("Mod", ids, width)


def _finished(
    op: Nodes,
    sizes: Sizes,
    options: Options,
    state: State,
    score: ir.Value,
    origin: ir.Value,
    token: ir.Value,
    taken: ir.Value,
    last: ir.Value,
    ends: ir.Value,
    finish: ir.Value,
) -> dict[str, ir.Value]:
    """The B best results of each sentence, including those that finish in this step, and which sentences are done.

    Args:
        op: the graph to append to.
        sizes: sizes of the model.
        options: the search options.
        state: the state before the step.
        score, origin, token: the candidates ``[A, K]``: score, hypothesis that it extends, id.
        taken: number of steps, with this one, ``[1]``.
        last: whether this is the last step, ``[1]``.
        ends: whether a candidate is the end token, ``[A, K]``.
        finish: whether it becomes a result, ``[A, B]``.
    """

    def first(value: ir.Value) -> ir.Value:
        return op.slice(value, 1, 0, options.beams)

    kept = op("Add", state["kept"], op("ReduceSum", op("Cast", finish, to=INT), op.constant([1]), keepdims=0))
    topped = op("Or", state["topped"], op("Squeeze", op.slice(finish, 1, 0, 1), op.constant([1])))
    enough = op("GreaterOrEqual", kept, options.beams)
    plain = op("Equal", options.penalty, op.constant([0], np.float32))
    early = op("And", topped, op("GreaterOrEqual", kept, options.results))
    # With a penalty of 0, scores only fall with the length, so nothing can beat a result that ranked first.
    enough = op("Or", op("And", plain, early), op("And", op("Not", plain), enough))

    history = rows_of(op, state["history"], first(origin))
    tokens, lengths = tokens_and_lengths(
        op, sizes, options, op("Concat", history, op.add_axis(first(token), 2), axis=2), first(ends), taken
    )
    scores = op("Div", first(score), length_factor(op, options, taken))
    scores = op("Where", finish, scores, op.constant(-np.inf, np.float32))
    scores, order = op.many(2, "TopK", op("Concat", state["scores"], scores, axis=1), options.beams, axis=1)
    return {
        "tokens": rows_of(op, op("Concat", state["tokens"], tokens, axis=1), order),
        "lengths": rows_of(op, op("Concat", state["lengths"], lengths, axis=1), order),
        "scores": scores,
        "kept": kept,
        "topped": topped,
        "done": op("Or", enough, last),
    }


def _successors(op: Nodes, options: Options, ends: ir.Value, finish: ir.Value, ranks: ir.Value) -> ir.Value:
    """The ranks ``[A, B]`` of the candidates that go on: the first B, but the n-th of them that finishes is replaced by
    the n-th of the spare candidates (ranks B to K - 1) that is not the end token.
    """
    ended = op("Cast", op.slice(ends, 1, options.beams, options.candidates), to=INT)
    key = op("Add", op("Mul", ended, options.beams), ranks)  # sorts spare candidates: end tokens last, else by rank
    _, spare = op.many(2, "TopK", key, options.beams, axis=1, largest=0)
    turn = op("CumSum", op("Cast", finish, to=INT), op.constant(1))  # n, from 1
    nth = op("Max", op("Sub", turn, op.constant(1)), op.constant(0))
    return op("Where", finish, op("Add", rows_of(op, spare, nth), options.beams), ranks)


def tokens_and_lengths(
    op: Nodes, sizes: Sizes, options: Options, history: ir.Value, ends: ir.Value, taken: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Tokens ``[A, B, M]``, without start and end and padded, and lengths ``[A, B]``, of results.

    Args:
        op: the graph to append to.
        sizes: sizes of the model.
        options: the search options.
        history: ids with the start, ``[A, B, P + 1]``.
        ends: whether the last id is the end token, ``[A, B]``.
        taken: P, ``[1]``.
    """
    lengths = op("Sub", taken, op("Cast", ends, to=INT))
    tokens = op.slice(history, 2, 1)  # without the start
    tokens = op("Where", op("Less", op.count(taken), op.add_axis(lengths, 2)), tokens, op.constant(sizes.pad))
    more = op.shape(0, 0, 0, 0, 0, op("Sub", options.longest, taken))
    return op("Pad", tokens, more, op.constant(sizes.pad)), lengths


def length_factor(op: Nodes, options: Options, taken: ir.Value) -> ir.Value:
    """The divisor of the scores of results after ``taken`` steps: ``taken ** penalty``."""
    return op("Pow", op("Cast", taken, to=FLOAT), options.penalty)


def rows_of(op: Nodes, value: ir.Value, index: ir.Value) -> ir.Value:
    """``value [A, X, …]``, ``index [A, Y]`` -> ``[A, Y, …]``."""
    return op("GatherND", value, op.add_axis(index, 2), batch_dims=1)
