"""Runtimes: all cases run even if one fails, ``full`` by its two halves, and the model itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch

from exported_models import KINDS, Exported
from mytx.exporter.cases.case import Array
from mytx.exporter.contracts.contract import Contract, TensorSpec
from mytx.exporter.runtimes.composed import Composed
from mytx.exporter.runtimes.eager import Eager
from mytx.exporter.runtimes.onnxruntime import OnnxRuntime, RuntimeOptions
from mytx.exporter.runtimes.runtime import Description, run_all
from plans import BATCH, TARGET


class Doubling:
    """Gives twice ``x``, and cannot take negative numbers."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.asked.append(float(inputs["x"]))
        if inputs["x"] < 0:
            raise ValueError(f"{inputs['x']} is negative")
        return {"y": 2 * inputs["x"]}

    def describe(self) -> Description:
        return Description("doubling", "1")


class AtOnce(Doubling):
    """The same, for all cases at once."""

    def run_all(self, many: Sequence[Mapping[str, Array]]) -> list[dict[str, Array] | Exception]:
        return [{"y": np.array(float(len(many)))} for _ in many]


def cases(*numbers: float) -> list[dict[str, Array]]:
    return [{"x": np.array(number)} for number in numbers]


# --- run_all ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", range(4))
def test_a_case_that_fails_does_not_stop_the_others(position: int) -> None:
    numbers = [1.0, 2.0, 3.0, 4.0]
    numbers[position] = -1.0
    runtime = Doubling()
    results = run_all(runtime, cases(*numbers))
    assert runtime.asked == numbers
    for number, result in zip(numbers, results, strict=True):
        if number < 0:
            assert isinstance(result, ValueError)
            assert "-1.0 is negative" in str(result)
        else:
            assert isinstance(result, dict)
            assert result["y"] == 2 * number


def test_no_cases_have_no_results() -> None:
    assert run_all(Doubling(), []) == []


def test_all_cases_may_fail() -> None:
    assert [type(result) for result in run_all(Doubling(), cases(-1, -2))] == [ValueError, ValueError]


def test_a_runtime_that_takes_all_cases_at_once_is_given_them_so() -> None:
    runtime = AtOnce()
    assert [result["y"] for result in run_all(runtime, cases(1, -2)) if isinstance(result, dict)] == [2, 2]
    assert runtime.asked == []


def test_ctrl_c_stops_everything() -> None:
    class Pressed(Doubling):
        def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(Pressed(), cases(1, 2))


# --- full by way of its halves ---------------------------------------------------------------------------------------


class Half:
    """Gives one number, and remembers what it was asked."""

    def __init__(self, takes: Sequence[str], gives: str, value: float) -> None:
        self.takes = takes
        self.gives = gives
        self.value = value
        self.given: dict[str, Array] = {}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.given = dict(inputs)
        return {self.gives: np.array(self.value)}

    def describe(self) -> Description:
        return Description("halves", "3", dict.fromkeys(self.takes, ("float32", ())), {self.gives: ("float32", ())})


def contract(*names: str) -> Contract:
    inputs = tuple(TensorSpec(name, "float32", (BATCH,)) for name in names)
    return Contract("full", inputs, (TensorSpec("logits", "float32", (BATCH, TARGET)),), "batch first")


def inputs_of(*names: str) -> dict[str, Array]:
    return {name: np.array(float(number)) for number, name in enumerate(names)}


IDS = ("src", "tgt", "src_key_padding_mask", "tgt_key_padding_mask")
BACK = ("tgt", "memory", "tgt_key_padding_mask", "memory_key_padding_mask")


def test_each_half_gets_its_own_inputs_and_the_decoder_the_encoders_output() -> None:
    """The encoder of a bare transformer calls its output ``output``, not ``memory``."""
    encoder = Half(["src", "src_key_padding_mask"], "output", 5.0)
    decoder = Half(BACK, "logits", 7.0)
    given = inputs_of(*IDS, "memory_key_padding_mask")
    outputs = Composed(encoder, decoder, contract(*given)).run(given)
    assert outputs == {"logits": 7.0}
    assert encoder.given == {name: given[name] for name in ("src", "src_key_padding_mask")}
    assert decoder.given == {
        "tgt": given["tgt"],
        "memory": 5.0,
        "tgt_key_padding_mask": given["tgt_key_padding_mask"],
        "memory_key_padding_mask": given["memory_key_padding_mask"],
    }


def test_the_one_padding_mask_of_the_source_hides_the_memory_too() -> None:
    encoder, decoder = Half(["src", "src_key_padding_mask"], "memory", 5.0), Half(BACK, "logits", 7.0)
    given = inputs_of(*IDS)
    Composed(encoder, decoder, contract(*given)).run(given)
    assert decoder.given["memory_key_padding_mask"] == given["src_key_padding_mask"]


def test_a_decoder_that_takes_no_padding_of_the_memory_gets_none() -> None:
    encoder, decoder = Half(["src"], "output", 5.0), Half(["tgt", "memory"], "output", 7.0)
    Composed(encoder, decoder, contract("src", "tgt")).run(inputs_of("src", "tgt"))
    assert set(encoder.given) == {"src"}
    assert set(decoder.given) == {"tgt", "memory"}


def test_masks_that_are_left_out_are_left_out_of_both_halves() -> None:
    encoder, decoder = Half(["src", "src_key_padding_mask"], "memory", 5.0), Half(BACK, "logits", 7.0)
    Composed(encoder, decoder, contract(*IDS)).run(inputs_of("src", "tgt"))
    assert set(encoder.given) == {"src"}
    assert set(decoder.given) == {"tgt", "memory"}


def test_a_padding_of_the_memory_that_full_takes_itself_is_not_replaced_by_that_of_the_source() -> None:
    """A bare transformer: left out, the memory has no padding, whatever the source has."""
    encoder, decoder = Half(["src", "src_key_padding_mask"], "output", 5.0), Half(BACK, "output", 7.0)
    given = inputs_of("src", "tgt", "src_key_padding_mask")
    Composed(encoder, decoder, contract(*IDS, "memory_key_padding_mask")).run(given)
    assert set(encoder.given) == {"src", "src_key_padding_mask"}
    assert set(decoder.given) == {"tgt", "memory"}


def test_an_encoder_with_two_outputs_is_an_error() -> None:
    class Two(Half):
        def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
            return {**super().run(inputs), "attention": np.array(0.0)}

    composed = Composed(Two(["src"], "memory", 5.0), Half(["tgt", "memory"], "logits", 7.0), contract("src", "tgt"))
    (result,) = run_all(composed, [inputs_of("src", "tgt")])
    assert isinstance(result, ValueError)


def test_the_two_halves_describe_themselves_as_the_full_contract() -> None:
    full = contract(*IDS)
    described = Composed(Half(["src"], "memory", 5.0), Half(BACK, "logits", 7.0), full).describe()
    assert (described.runtime, described.version) == ("halves, decoder(encoder)", "3")
    assert described.inputs == dict.fromkeys(IDS, ("float32", ("batch",)))
    assert described.outputs == {"logits": ("float32", ("batch", "target"))}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "pooling" not in kind])
def test_the_halves_of_a_file_are_the_file(kind: str, exports: Callable[[str], Exported]) -> None:
    exported = exports(kind)
    halves = [OnnxRuntime.open(exported.path(name)) for name in ("encoder", "decoder")]
    composed = Composed(*halves, exported.contract("full"))
    whole = OnnxRuntime.open(exported.path("full"))
    for case, expected in zip(exported.plan("full"), exported.expected("full"), strict=True):
        (apart,), (together,) = composed.run(case.inputs).values(), whole.run(case.inputs).values()
        (reference,) = expected.values()
        assert apart.shape == together.shape
        assert np.abs(apart - together).max() <= 8 * reference.noise


# --- the model itself ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_runs_by_name_and_describes_its_contract(kind: str, exports: Callable[[str], Exported]) -> None:
    exported = exports(kind)
    for name, graph in exported.graphs.items():
        runtime = Eager(graph)
        described = runtime.describe()
        specs = graph.contract.inputs, graph.contract.outputs
        for found, expected in zip((described.inputs, described.outputs), specs, strict=True):
            assert found == {spec.name: (spec.dtype, spec.labels) for spec in expected}
        assert (described.runtime, described.version) == ("PyTorch", torch.__version__)
        case = exported.plan(name)[1]
        (output,) = graph.contract.outputs
        found = runtime.run(dict(reversed(case.inputs.items())))
        with torch.no_grad():
            given = {key: torch.from_numpy(array) for key, array in case.inputs.items()}
            assert np.array_equal(found[output.name], graph.module(**given).numpy())
        assert list(found) == [output.name]


# --- names in a report -----------------------------------------------------------------------------------------------


def test_every_way_to_run_onnxruntime_has_its_own_name() -> None:
    options = [RuntimeOptions(level, threads) for level in ("off", "basic", "extended", "all") for threads in (0, 1)]
    labels = [OnnxRuntime.label(item) for item in options]
    assert len(set(labels)) == len(labels)
    assert OnnxRuntime.label(RuntimeOptions()) == "onnxruntime"
    assert all(label.startswith("onnxruntime") for label in labels)
    assert ["1 thread" in label for label in labels] == [False, True] * 4
