"""Greedy and beam search as ONNX loops around the cached step: standard operators only, opset 18 and up.

:mod:`mytx.models.search` describes the search, and the results are the same. There are two nested loops. The inner loop
runs steps until some sentence is done. The outer loop then removes the sentences that are done from the batch. So these
cost nothing from then on, and the steps in between copy nothing. The inner loop also ends after ``min_length`` steps,
where the end token becomes allowed, so that no step has to check that.

Letters: ``N`` sentences, ``A`` sentences in the batch now, ``B`` beams, ``K`` candidates (2 B), ``M`` the longest
result allowed, ``n`` results per sentence, ``P`` steps done, ``H`` heads, ``D`` size of a head, ``S`` source length,
``L`` length of the longest result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from .nodes import BOOL, FLOAT, INT, Nodes, Part
from .rounds import Options, Sizes, beam_round, greedy_round, length_factor, rows_of, tokens_and_lengths

BIAS = "classification.bias"  # the bias of the logits, as the step names it
FOUND = ("tokens", "lengths", "scores")  # the results of a search


def add_search(
    op: Nodes,
    sizes: Sizes,
    step: Part,
    inputs: Mapping[str, ir.Value],
    cross: Sequence[ir.Value],
    initializers: dict[str, ir.Value],
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Append the nodes of a search: beam search if ``inputs`` has ``num_beams``, greedy search if not.

    Args:
        op: the graph to append to.
        sizes: sizes of the model.
        step: the graph of a cached step. Inputs: ``tgt [A, B]``, ``src_key_padding_mask [A, S]``, ``cross_key_0`` and
            so on, ``past_key_0`` and so on. Outputs: logits ``[A, B, V]`` and the past with the new position.
        inputs: ``src_key_padding_mask [N, S]``, and the search options, each one number: ``max_length``,
            ``min_length``, ``length_penalty``, and for beam search ``num_beams`` and ``num_hypotheses``. Numbers out of
            range are replaced by the nearest ones in range.
        cross: keys ``[N, H, D, S]`` and values ``[N, H, S, D]`` of the memory, a pair for each layer.
        initializers: the graph's initializers by name; those of the step are added.

    Returns:
        Tokens ``[N, n, L]``, lengths ``[N, n]`` and scores ``[N, n]``.
    """
    beams = "num_beams" in inputs
    options = _options(op, sizes, inputs)
    first, kinds = _start(op, sizes, options, inputs["src_key_padding_mask"], cross, beams)
    bias = step.initializer(BIAS, initializers)
    # The bias with -inf for the end token, for the first min_length steps.
    endless = op("ScatterElements", bias, op.constant([sizes.eos]), op.constant([-np.inf], np.float32), axis=0)
    fixed = ("alive", "padding", *(f"cross_{i}" for i in sizes.caches))  # constant within a phase
    final = tuple(f"final_{name}" for name in FOUND)
    carried = [name for name in kinds if name not in (*fixed, *final)]
    trips = op.scalar(options.longest)

    def phase(op: Nodes, state: dict[str, ir.Value]) -> tuple[ir.Value, dict[str, ir.Value]]:
        """A round of the outer loop: steps until a sentence is done, then the sentences that are done are removed."""
        before = op("Sub", op.size(state["history"], 2), op.constant([1]))
        short = op("Less", before, options.shortest)
        stop = op("Add", op("Where", short, options.shortest, options.longest), op.constant([1]))
        given = {f"cross_{sizes.name(i)}": state[f"cross_{i}"] for i in sizes.caches}
        given |= {"src_key_padding_mask": state["padding"], BIAS: op("Where", short, endless, bias)}

        def one_step(op: Nodes, inner: dict[str, ir.Value]) -> tuple[ir.Value, dict[str, ir.Value]]:
            past = {f"past_{sizes.name(i)}": inner[f"past_{i}"] for i in sizes.caches}
            logits, *grown = step.inline(op, {**given, **past, "tgt": inner["token"]}, initializers)
            search_round = beam_round if beams else greedy_round
            going, after_step = search_round(op, sizes, options, {**state, **inner}, logits, grown)
            # Counted by the length, not by the trip count: OpenVINO uses the trip count of the first phase for all.
            more = op.scalar(op("Less", op.size(after_step["history"], 2), stop))
            return op("And", going, more), after_step

        after = op.loop("steps", trips, {name: state[name] for name in carried}, kinds, one_step)
        found = (
            {name: after[name] for name in (*FOUND, "done")} if beams else _greedy_results(op, sizes, options, after)
        )
        leaving, staying = (op("NonZero", which) for which in (found["done"], op("Not", found["done"])))
        leaving = op("Transpose", leaving)  # [number of sentences that are done, 1]
        sentences = op.add_axis(op("GatherND", state["alive"], leaving), 1)
        following = {
            f"final_{name}": op("ScatterND", state[f"final_{name}"], sentences, op("GatherND", found[name], leaving))
            for name in FOUND
        }
        left = op("Squeeze", staying, op.constant([0]))
        values = {name: after.get(name, state[name]) for name in kinds if name not in final}
        following |= {name: op("Gather", value, left, axis=0) for name, value in values.items()}
        return op("Greater", op.scalar(op.size(left, 0)), op.constant(0)), following

    some = op("Greater", op.scalar(op.size(first["padding"], 0)), op.constant(0))  # whether the batch has a sentence
    end = op.loop("phases", trips, first, kinds, phase, some)
    tokens, lengths, scores = (end[name] for name in final)
    if beams:
        scores, order = op.many(2, "TopK", scores, options.results, axis=1)
        lengths, tokens = rows_of(op, lengths, order), rows_of(op, tokens, order)
    every = op("Concat", op("Reshape", lengths, op.constant([-1])), op.constant([0]), axis=0)
    return op.slice(tokens, 2, 0, op("ReduceMax", every, keepdims=1)), lengths, scores


def _options(op: Nodes, sizes: Sizes, inputs: Mapping[str, ir.Value]) -> Options:
    """The search options ``[]`` in ``inputs`` as ``[1]``, replaced by the nearest value in range."""

    def number(name: str) -> ir.Value:
        return op("Reshape", inputs[name], op.constant([1]))

    one = op.constant([1])
    longest = op("Max", op("Min", number("max_length"), op.constant([sizes.positions])), one)
    beams = results = one
    if "num_beams" in inputs:
        beams = op("Max", op("Min", number("num_beams"), op.constant([sizes.vocabulary // 2])), one)
        results = op("Max", op("Min", number("num_hypotheses"), beams), one)
    penalty = op("Max", number("length_penalty"), op.constant([0], np.float32))
    shortest = op("Min", number("min_length"), longest)
    return Options(longest, shortest, penalty, beams, results, op("Mul", beams, op.constant([2])))


def _start(
    op: Nodes, sizes: Sizes, options: Options, padding: ir.Value, cross: Sequence[ir.Value], beams: bool
) -> tuple[dict[str, ir.Value], dict[str, tuple[ir.DataType, int]]]:
    """The state before the first step, by name, and the dtype and rank of each value.

    There are B hypotheses from the start, so that the number is the same in all steps. All but one have score -inf.
    """
    batch, width = op.size(padding, 0), options.beams
    total = op.filled(0, np.float32, batch, width, 1)
    if beams:
        others = op("Greater", op.count(width), op.constant(0))
        total = op("Where", op.add_axis(others, 1), op.constant(-np.inf, np.float32), total)
    found = {
        "tokens": (op.filled(sizes.pad, np.int64, batch, width, options.longest), INT, 3),
        "lengths": (op.filled(0, np.int64, batch, width), INT, 2),
        "scores": (op.filled(-np.inf, np.float32, batch, width), FLOAT, 2),
    }
    state = {
        "history": (op.filled(sizes.bos, np.int64, batch, width, 1), INT, 3),  # ids so far, with the start
        "token": (op.filled(sizes.bos, np.int64, batch, width), INT, 2),  # the last of them
        "total": (total, FLOAT, 3),  # the sum of their log-probabilities
    }
    if beams:
        state |= found
        state |= {
            "kept": (op.filled(0, np.int64, batch), INT, 1),  # number of results so far
            "topped": (op.filled(False, np.bool_, batch), BOOL, 1),  # whether a candidate that ranked first finished
            "done": (op.filled(False, np.bool_, batch), BOOL, 1),
        }
    for i, value in enumerate(cross):
        tail = (sizes.head_dim, 0) if i % 2 == 0 else (0, sizes.head_dim)
        state[f"past_{i}"] = (op.filled(0, np.float32, batch, width, sizes.heads, *tail), FLOAT, 5)
        state[f"cross_{i}"] = (value, FLOAT, 4)
    # alive: the places in the whole batch of the sentences that are still searched
    state |= {"alive": (op.count(batch), INT, 1), "padding": (padding, BOOL, 2)}
    state |= {f"final_{name}": kind for name, kind in found.items()}
    return {name: kind[0] for name, kind in state.items()}, {name: kind[1:] for name, kind in state.items()}


def _greedy_results(op: Nodes, sizes: Sizes, options: Options, after: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
    """The results of a greedy search for all sentences in the batch, and which of these are done."""
    taken = op("Sub", op.size(after["history"], 2), op.constant([1]))
    ends = op("Equal", after["token"], op.constant(sizes.eos))  # [A, 1]
    done = op("Or", ends, op("GreaterOrEqual", taken, options.longest))
    tokens, lengths = tokens_and_lengths(op, sizes, options, after["history"], ends, taken)
    scores = op("Div", op("Squeeze", after["total"], op.constant([2])), length_factor(op, options, taken))
    return {"tokens": tokens, "lengths": lengths, "scores": scores, "done": op("Squeeze", done, op.constant([1]))}
