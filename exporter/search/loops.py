"""Greedy and beam search as ONNX loops around the cached step: standard operators only, opset 18 and up.

What the search does is written in :mod:`mytx.models.search`; this is the same for graphs. Two loops, one inside the
other: the inner one goes on, a step at a time, until some sentence is done; the outer one then takes the sentences that
are done out of the batch. So they cost nothing from there on, and in between nothing is copied for that. The inner one
also stops where the end token becomes allowed, after ``min_length`` steps: so its rounds need not ask.

Letters: ``N`` sentences, ``A`` of them alive, ``B`` beams, ``K`` candidates (2 B), ``M`` the longest result allowed,
``n`` results wanted, ``P`` steps done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from .nodes import BOOL, FLOAT, INT, Nodes, Part
from .rounds import Sizes, Wishes, beam_round, greedy_round, length_factor, results, rows_of

BIAS = "classification.bias"  # of the logits, by its name in the step
FOUND = ("tokens", "lengths", "scores")


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
        step: takes ``tgt [A, B]``, ``src_key_padding_mask [A, S]``, ``cross_key_0`` and so on, ``past_key_0`` and so
            on; gives logits ``[A, B, V]`` and the grown past.
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
    first, kinds = _start(op, sizes, wishes, inputs["src_key_padding_mask"], cross, beams)
    bias = step.initializer(BIAS, initializers)
    never = op("ScatterElements", bias, op.constant([sizes.eos]), op.constant([-np.inf], np.float32), axis=0)
    fixed = ("alive", "padding", *(f"cross_{i}" for i in sizes.caches))  # during a phase
    final = tuple(f"final_{name}" for name in FOUND)
    carried = [name for name in kinds if name not in (*fixed, *final)]
    trips = op.scalar(wishes.longest)

    def phase(op: Nodes, state: dict[str, ir.Value]) -> tuple[ir.Value, dict[str, ir.Value]]:
        """Steps until a sentence is done; then it leaves."""
        before = op("Sub", op.size(state["history"], 2), op.constant([1]))
        short = op("Less", before, wishes.shortest)
        stop = op("Add", op("Where", short, wishes.shortest, wishes.longest), op.constant([1]))
        given = {f"cross_{sizes.name(i)}": state[f"cross_{i}"] for i in sizes.caches}
        given |= {"src_key_padding_mask": state["padding"], BIAS: op("Where", short, never, bias)}

        def one_step(op: Nodes, inner: dict[str, ir.Value]) -> tuple[ir.Value, dict[str, ir.Value]]:
            past = {f"past_{sizes.name(i)}": inner[f"past_{i}"] for i in sizes.caches}
            logits, *grown = step.inline(op, {**given, **past, "tgt": inner["token"]}, initializers)
            make = beam_round if beams else greedy_round
            going, results = make(op, sizes, wishes, {**state, **inner}, logits, grown)
            # Not by the number of rounds: OpenVINO keeps that of the first phase for all.
            more = op.scalar(op("Less", op.size(results["history"], 2), stop))
            return op("And", going, more), results

        after = op.loop("steps", trips, {name: state[name] for name in carried}, kinds, one_step)
        found = {name: after[name] for name in (*FOUND, "done")} if beams else _found(op, sizes, wishes, after)
        leaving, staying = (op("NonZero", which) for which in (found["done"], op("Not", found["done"])))
        leaving = op("Transpose", leaving)  # [F, 1]
        sentences = op.add_axis(op("GatherND", state["alive"], leaving), 1)
        following = {
            f"final_{name}": op("ScatterND", state[f"final_{name}"], sentences, op("GatherND", found[name], leaving))
            for name in FOUND
        }
        left = op("Squeeze", staying, op.constant([0]))
        values = {name: after.get(name, state[name]) for name in kinds if name not in final}
        following |= {name: op("Gather", value, left, axis=0) for name, value in values.items()}
        return op("Greater", op.scalar(op.size(left, 0)), op.constant(0)), following

    some = op("Greater", op.scalar(op.size(first["padding"], 0)), op.constant(0))
    end = op.loop("phases", trips, first, kinds, phase, some)
    tokens, lengths, scores = (end[name] for name in final)
    if beams:
        scores, order = op.many(2, "TopK", scores, wishes.results, axis=1)
        lengths, tokens = rows_of(op, lengths, order), rows_of(op, tokens, order)
    every = op("Concat", op("Reshape", lengths, op.constant([-1])), op.constant([0]), axis=0)
    return op.slice(tokens, 2, 0, op("ReduceMax", every, keepdims=1)), lengths, scores


def _wishes(op: Nodes, sizes: Sizes, inputs: Mapping[str, ir.Value]) -> Wishes:
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
    return Wishes(longest, shortest, penalty, beams, results, op("Mul", beams, op.constant([2])))


def _start(
    op: Nodes, sizes: Sizes, wishes: Wishes, padding: ir.Value, cross: Sequence[ir.Value], beams: bool
) -> tuple[dict[str, ir.Value], dict[str, tuple[ir.DataType, int]]]:
    """What goes into the first round, and the dtype and rank of each.

    There are B hypotheses from the start, so that their number is the same in all rounds; all but one are impossible.
    """
    batch, width = op.size(padding, 0), wishes.beams
    total = op.filled(0, np.float32, batch, width, 1)
    if beams:
        others = op("Greater", op.count(width), op.constant(0))
        total = op("Where", op.add_axis(others, 1), op.constant(-np.inf, np.float32), total)
    found = {
        "tokens": (op.filled(sizes.pad, np.int64, batch, width, wishes.longest), INT, 3),
        "lengths": (op.filled(0, np.int64, batch, width), INT, 2),
        "scores": (op.filled(-np.inf, np.float32, batch, width), FLOAT, 2),
    }
    state = {
        "history": (op.filled(sizes.bos, np.int64, batch, width, 1), INT, 3),
        "token": (op.filled(sizes.bos, np.int64, batch, width), INT, 2),
        "total": (total, FLOAT, 3),
    }
    if beams:
        state |= found
        state |= {
            "kept": (op.filled(0, np.int64, batch), INT, 1),
            "topped": (op.filled(False, np.bool_, batch), BOOL, 1),
            "done": (op.filled(False, np.bool_, batch), BOOL, 1),
        }
    for i, value in enumerate(cross):
        tail = (sizes.head_dim, 0) if i % 2 == 0 else (0, sizes.head_dim)
        state[f"past_{i}"] = (op.filled(0, np.float32, batch, width, sizes.heads, *tail), FLOAT, 5)
        state[f"cross_{i}"] = (value, FLOAT, 4)
    state |= {"alive": (op.count(batch), INT, 1), "padding": (padding, BOOL, 2)}
    state |= {f"final_{name}": kind for name, kind in found.items()}
    return {name: kind[0] for name, kind in state.items()}, {name: kind[1:] for name, kind in state.items()}


def _found(op: Nodes, sizes: Sizes, wishes: Wishes, after: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
    """The results of a greedy search for all sentences, and which of them are done."""
    taken = op("Sub", op.size(after["history"], 2), op.constant([1]))
    ends = op("Equal", after["token"], op.constant(sizes.eos))  # [A, 1]
    done = op("Or", ends, op("GreaterOrEqual", taken, wishes.longest))
    tokens, lengths = results(op, sizes, wishes, after["history"], ends, taken)
    scores = op("Div", op("Squeeze", after["total"], op.constant([2])), length_factor(op, wishes, taken))
    return {"tokens": tokens, "lengths": lengths, "scores": scores, "done": op("Squeeze", done, op.constant([1]))}
