"""Faults in a cached step, in what comes before the first, and in how a runtime keeps the past."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from onnx import GraphProto, helper

from fault import Fault, found_by
from mytx.exporter.cases.case import Array
from mytx.exporter.cases.plan import step_cases
from mytx.exporter.runtimes.composed import Stepped
from mytx.exporter.runtimes.run import Run, composed_runs
from mytx.exporter.runtimes.runtime import Description, Runtime
from planting import (
    change,
    constant,
    get_constant,
    insert,
    mask_input_ignored,
    mask_polarity_turned,
    reads,
    set_attribute,
    set_constant,
)
from planting_loops import position_moved
from subject import Subject, in_graph

VALUES, STRUCTURE = found_by("rounding", "structure"), found_by("structure")
WEIGHTS = found_by("weights", "rounding", "structure")
Edit = Callable[[GraphProto], None]


# --- in the file -----------------------------------------------------------------------------------------------------


def outputs_swapped(first: str, second: str) -> Edit:
    """Two outputs of the same shape have changed names."""

    def fault(graph: GraphProto) -> None:
        names = {first: second, second: first}
        for found in graph.node:
            for part in (found.input, found.output):
                for index, name in enumerate(part):
                    part[index] = names.get(name, name)

    return fault


def inputs_swapped(first: str, second: str) -> Edit:
    """Two inputs of the same shape are read in each other's place."""

    def fault(graph: GraphProto) -> None:
        names = {first: second, second: first}
        for found in graph.node:
            for index, name in enumerate(found.input):
                found.input[index] = names.get(name, name)

    return fault


def scale_of_the_softmax(factor: float) -> Edit:
    def fault(graph: GraphProto) -> None:
        scaled = next(found for found in graph.node if found.op_type == "Mul" and "q_proj.weight" in found.input[0])
        set_constant(graph, scaled.input[1], (get_constant(graph, scaled.input[1]) * factor).astype(np.float32))

    return fault


def key_and_value_projected_by_each_other(graph: GraphProto) -> None:
    """The projections that were put on top of each other stand in another order."""
    for kind in ("weight", "bias"):
        joined = next(
            found
            for found in graph.node
            if found.op_type == "Concat" and any(f"k_proj.{kind}" in name for name in found.input)
        )
        joined.input[1], joined.input[2] = joined.input[2], joined.input[1]


def new_position_in_front(graph: GraphProto) -> None:
    """Attention does not mind the order; whoever cuts the past does."""
    joined = next(found for found in graph.node if found.output[0] == "present_key_1")
    joined.input[0], joined.input[1] = joined.input[1], joined.input[0]


def past_read_in_reverse(graph: GraphProto) -> None:
    """The keys belong to other positions than the values."""
    joined = next(found for found in graph.node if found.output[0] == "present_key_0")
    numbers = [constant(graph, np.array([n], np.int64), f"planted_{i}") for i, n in enumerate((-1, -(2**60), 4, -1))]
    joined.input[0] = insert(graph, joined, "Slice", [joined.input[0], *numbers], "turned")


def hypotheses_turned(name: str) -> Edit:
    """The cache of the other hypotheses of the sentence."""

    def fault(graph: GraphProto) -> None:
        first = reads(graph, name)[0]
        numbers = [
            constant(graph, np.array([n], np.int64), f"planted_{i}") for i, n in enumerate((-1, -(2**60), 1, -1))
        ]
        turned = insert(graph, first, "Slice", [name, *numbers], "turned")
        for found in graph.node:
            for index, given in enumerate(found.input):
                if given == name and found.output[0] != turned:
                    found.input[index] = turned

    return fault


def first_past_position_forgotten(graph: GraphProto) -> None:
    """What the start id left is 0: a window that is one too short."""
    found = reads(graph, "present_value_0")[0]
    start, one, end, axis = (
        constant(graph, np.array([n], np.int64), f"planted_{name}")
        for name, n in (("start", 0), ("one", 1), ("end", 2**60), ("axis", 3))
    )
    first = insert(graph, found, "Slice", ["present_value_0", start, one, axis], "first")
    rest = insert(graph, found, "Slice", ["present_value_0", one, end, axis], "rest")
    nothing = insert(graph, found, "Sub", [first, first], "nothing")
    whole = insert(graph, found, "Concat", [nothing, rest], "whole_past", axis=3)
    found.input[list(found.input).index("present_value_0")] = whole


def start_id(graph: GraphProto) -> None:
    """Prefill begins with another id."""
    for found in graph.node:
        if found.op_type == "ConstantOfShape":
            value = next(item.t for item in found.attribute if item.name == "value")
            if value.data_type == 7 and np.frombuffer(value.raw_data, np.int64).tolist() == [1]:
                set_attribute(found, "value", helper.make_tensor("value", 7, [1], [2]))
                return
    raise AssertionError("no start id")


# --- in a runtime ----------------------------------------------------------------------------------------------------


class Past:
    """A step whose past is spoilt."""

    def __init__(self, inner: Runtime, spoil: Callable[[dict[str, Array]], dict[str, Array]]) -> None:
        self.inner = inner
        self.spoil = spoil

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return self.spoil(self.inner.run(inputs))

    def describe(self) -> Description:
        return self.inner.describe()


class Stale:
    """Right logits, and keys and values of the first call of the same shape: a buffer that nobody filled again."""

    def __init__(self) -> None:
        self.before: dict[tuple[str, tuple[int, ...]], Array] = {}

    def __call__(self, outputs: dict[str, Array]) -> dict[str, Array]:
        return {
            name: array if name == "logits" else self.before.setdefault((name, array.shape), array.copy())
            for name, array in outputs.items()
        }


def reordered(outputs: dict[str, Array]) -> dict[str, Array]:
    """The sentences' pasts have changed places."""
    return {name: array if name == "logits" else array[::-1] for name, array in outputs.items()}


def in_cached_steps(spoil: Callable[[], Callable[[dict[str, Array]], dict[str, Array]]]) -> Callable[[Subject], None]:
    """The full graph is right; by cached steps it is not."""

    def plant(subject: Subject) -> None:
        for name in ("step", "prefill"):
            subject.file(name).write_bytes(subject.exported.path(name).read_bytes())
        more = step_cases(subject.plan)
        subject.plan += more
        subject.expected += subject.exported.references("full", more)
        first = subject.runs[0]

        def open_graph(name: str) -> Runtime:
            runtime = first.open(subject.file(name))
            return Past(runtime, spoil()) if name == "step" else runtime

        stepped: Run = composed_runs(first, open_graph, subject.contract, ["prefill", "step"])[0]
        subject.runs.append(stepped)
        subject.stepped = lambda prefill, step: Stepped(prefill, Past(step, spoil()), subject.contract.lifted())

    return plant


def spoilt(spoil: Callable[[], Callable[[dict[str, Array]], dict[str, Array]]]) -> Callable[[Subject], None]:
    return lambda subject: subject.wrap_runtimes(lambda inner: Past(inner, spoil()))


def _step(name: str, edit: Edit, checks: frozenset[str] = VALUES, graph: str = "step", **more: object) -> Fault:
    return Fault(name, "steps", in_graph(edit), checks, graph=graph, model="lively", **more)  # type: ignore[arg-type]


FAULTS = [
    _step("a step one position late", position_moved(1)),
    _step("a step one position early", position_moved(-1)),
    _step("prefill one position late", position_moved(1), graph="prefill"),
    _step("keys of the other layer's past", inputs_swapped("past_key_0", "past_key_1")),
    _step("values of the other layer's past", inputs_swapped("past_value_0", "past_value_1")),
    _step("keys of the other layer's memory", inputs_swapped("cross_key_0", "cross_key_1")),
    _step("keys of two layers given for each other", outputs_swapped("present_key_0", "present_key_1")),
    _step(
        "prefill gives the layers' values for each other",
        outputs_swapped("past_value_0", "past_value_1"),
        graph="prefill",
    ),
    _step(
        "prefill gives the memory of the other layer", outputs_swapped("cross_key_0", "cross_key_1"), graph="prefill"
    ),
    _step("the new position in front of the past", new_position_in_front),
    _step("keys of other positions than the values", past_read_in_reverse),
    _step("the past of the other hypotheses", hypotheses_turned("past_key_0")),
    _step("the first position of the past forgotten", first_past_position_forgotten),
    _step("a softmax in a step scaled by 1.00001", scale_of_the_softmax(1 + 1e-5)),
    _step("a softmax in a step scaled by 1.000001", scale_of_the_softmax(1 + 1e-6), STRUCTURE, small=True),
    _step("key and value fused in another order", key_and_value_projected_by_each_other),
    _step("a step that ignores the source's padding", mask_input_ignored("src_key_padding_mask")),
    _step("a step with the source's padding turned round", mask_polarity_turned("src_key_padding_mask")),
    _step("prefill with another start id", start_id, graph="prefill"),
    _step(
        "a bias of a query in a step off by 0.01",
        lambda graph: change(graph, "multihead_attn.q_proj.bias", lambda values: values + np.float32(0.01)),
        WEIGHTS,
        words="multihead_attn.q_proj.bias differs from the model",
    ),
    Fault("a stale past", "steps", spoilt(Stale), VALUES, graph="step", model="lively"),
    Fault(
        "a stale past in the full graph by steps",
        "steps",
        in_cached_steps(Stale),
        found_by("rounding"),
        graph="full",
        model="lively",
        others=False,
    ),
    Fault(
        "a past that does not follow its sentence",
        "steps",
        in_cached_steps(lambda: reordered),
        found_by("rounding"),
        graph="full",
        model="lively",
        others=False,
    ),
]
