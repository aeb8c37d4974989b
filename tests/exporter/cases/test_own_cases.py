"""The user's own cases: good files are read, and each bad one gives an error of one line and a hint."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exported_models import EVERY_MASK, classification, plain, translation
from mytx.exporter import OptionError
from mytx.exporter.cases.case import Array
from mytx.exporter.cases.user_cases import own_case, read_cases
from mytx.exporter.contracts.contract import Contract
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.transformer import MyTransformer

CONTRACTS = [graph.contract for graph in plain(graphs_of(translation(max_length=20))).values()]
Inputs = dict[str, Any]


def encoder_inputs(batch: int = 2, source: int = 5) -> Inputs:
    """A good case for the encoder."""
    ids = np.arange(batch * source).reshape(batch, source) % 11
    return {"src": ids, "src_key_padding_mask": np.zeros((batch, source), bool)}


def saved(folder: Path, inputs: Inputs, name: str = "mine.npz") -> Path:
    np.savez(folder / name, **inputs)
    return folder / name


def refused(path: Path, contracts: list[Contract] = CONTRACTS) -> OptionError:
    with pytest.raises(OptionError) as caught:
        read_cases([path], contracts)
    assert str(path) in caught.value.message
    assert caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint
    return caught.value


def equal(case: dict[str, Array], inputs: Inputs) -> bool:
    return set(case) == set(inputs) and all(np.array_equal(case[name], inputs[name]) for name in inputs)


# --- good files ------------------------------------------------------------------------------------------------------


def test_a_file_with_the_inputs_of_a_graph_is_a_case_of_that_graph(tmp_path: Path) -> None:
    inputs = encoder_inputs()
    found = read_cases([saved(tmp_path, inputs)], CONTRACTS)
    assert list(found) == ["encoder"]
    (case,) = found["encoder"]
    assert equal(case.inputs, inputs)
    assert list(case.inputs) == ["src", "src_key_padding_mask"]
    assert (case.group, case.same_as, case.small) == ("own", None, True)
    assert case.words == "mine.npz, batch 2, source 5"


def test_inputs_come_in_the_contracts_order_however_they_are_stored(tmp_path: Path) -> None:
    path = saved(tmp_path, dict(reversed(encoder_inputs().items())))
    (case,) = read_cases([path], CONTRACTS)["encoder"]
    assert list(case.inputs) == ["src", "src_key_padding_mask"]


def test_arrays_that_were_transposed_are_taken(tmp_path: Path) -> None:
    inputs = {**encoder_inputs(), "src": np.asfortranarray(encoder_inputs()["src"])}
    (case,) = read_cases([saved(tmp_path, inputs)], CONTRACTS)["encoder"]
    assert equal(case.inputs, inputs)
    assert all(array.flags.c_contiguous for array in case.inputs.values())


def test_each_file_goes_to_its_graph_and_one_that_fits_two_goes_to_both(tmp_path: Path) -> None:
    contracts = [graph.contract for graph in graphs_of(classification("sum")).values()]
    files = [saved(tmp_path, encoder_inputs(source=n), f"{n}.npz") for n in (3, 60)]
    found = read_cases(files, contracts)
    assert {name: [case.words for case in cases] for name, cases in found.items()} == {
        name: ["3.npz, batch 2, source 3", "60.npz, batch 2, source 60"] for name in ("encoder", "full")
    }
    assert [case.small for case in found["full"]] == [True, False]


def test_control_characters_of_a_name_are_written_out(tmp_path: Path) -> None:
    inputs = encoder_inputs()
    (case,) = read_cases([saved(tmp_path, inputs, "a\x1b[31m\n\x01\u2028é.npz")], CONTRACTS)["encoder"]
    assert case.words.startswith(r"a\x1b[31m\n\x01\u2028é.npz, batch 2")


def test_no_files_are_no_cases() -> None:
    assert read_cases([], CONTRACTS) == {}


@pytest.mark.parametrize(("batch", "source"), [(1, 1), (1, 20), (7, 20)])
def test_lengths_up_to_the_positions_are_taken(batch: int, source: int, tmp_path: Path) -> None:
    (case,) = read_cases([saved(tmp_path, encoder_inputs(batch, source))], CONTRACTS)["encoder"]
    assert case.inputs["src"].shape == (batch, source)


def test_a_mask_may_hold_minus_infinity(tmp_path: Path) -> None:
    contract = graphs_of(MyTransformer(16, 2, 1, 1, 24), EVERY_MASK)["encoder"].contract
    inputs = {
        "src": np.ones((4, 3, 16), np.float32),
        "src_mask": np.zeros((4, 4), bool),
        "src_key_padding_mask": np.full((3, 4), -np.inf, np.float32),
    }
    (case,) = read_cases([saved(tmp_path, inputs)], [contract])["encoder"]
    assert equal(case.inputs, inputs)


# --- files that fit no graph -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["one is missing", "one too many", "another name"])
def test_other_names_are_refused_with_those_of_every_graph(change: str, tmp_path: Path) -> None:
    inputs = encoder_inputs()
    if change != "one too many":
        del inputs["src_key_padding_mask"]
    if change != "one is missing":
        inputs["padding"] = np.zeros((2, 5), bool)
    error = refused(saved(tmp_path, inputs))
    assert ", ".join(inputs) in error.message
    assert "encoder: src, src_key_padding_mask" in error.hint
    assert "decoder: tgt, memory, tgt_key_padding_mask, memory_key_padding_mask" in error.hint
    assert "full: src, tgt, src_key_padding_mask, tgt_key_padding_mask" in error.hint


def test_a_file_without_arrays_is_refused(tmp_path: Path) -> None:
    assert "nothing" in refused(saved(tmp_path, {})).message


def test_a_case_of_a_graph_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "no graph takes" in refused(saved(tmp_path, encoder_inputs()), CONTRACTS[1:]).message


# --- arrays that do not fit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"src": np.ones((2, 5), np.int32)}, "src is int32", "make it int64: ids, 0 to 10"),
        ({"src": np.ones((2, 5))}, "src is float64", "int64"),
        ({"src_key_padding_mask": np.zeros((2, 5))}, "src_key_padding_mask is float64", "bool: True = padding"),
        ({"src": np.ones(5, np.int64)}, "src has shape [5]", "['batch', 'source']"),
        ({"src": np.ones((2, 5, 1), np.int64)}, "src has shape [2, 5, 1]", "['batch', 'source']"),
        (
            {"src_key_padding_mask": np.zeros((2, 4), bool)},
            "src_key_padding_mask has shape [2, 4]",
            "its dimension source must be 5",
        ),
        (
            {"src_key_padding_mask": np.zeros((3, 5), bool)},
            "src_key_padding_mask has shape [3, 5]",
            "its dimension batch must be 2",
        ),
        ({"src": np.full((2, 5), 11)}, "src has ids from 11 to 11", "0 to 10"),
        ({"src": np.array([[0, -1, 3, 4, 10]] * 2)}, "src has ids from -1 to 10", "0 to 10"),
        (encoder_inputs(source=21), "source is 21", "encoder takes 1 to 20"),
        (encoder_inputs(source=0), "source is 0", "encoder takes 1 to 20"),
        (encoder_inputs(batch=0), "batch is 0", "encoder takes 1 or more"),
    ],
)
def test_an_array_that_does_not_fit_is_refused_with_what_does(
    change: Inputs, message: str, hint: str, tmp_path: Path
) -> None:
    error = refused(saved(tmp_path, {**encoder_inputs(), **change}))
    assert message in error.message
    assert hint in error.hint


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(broken: float, tmp_path: Path) -> None:
    memory = np.zeros((2, 5, 16), np.float32)
    memory[1, 4, 15] = broken
    inputs = {
        "tgt": np.ones((2, 3), np.int64),
        "memory": memory,
        "tgt_key_padding_mask": np.zeros((2, 3), bool),
        "memory_key_padding_mask": np.zeros((2, 5), bool),
    }
    error = refused(saved(tmp_path, inputs))
    assert "memory has NaN or infinity" in error.message
    inputs["memory"] = np.ones_like(memory)
    assert equal(read_cases([saved(tmp_path, inputs)], CONTRACTS)["decoder"][0].inputs, inputs)


def test_a_width_that_is_not_the_models_is_refused(tmp_path: Path) -> None:
    inputs = {
        "tgt": np.ones((2, 3), np.int64),
        "memory": np.ones((2, 5, 12), np.float32),
        "tgt_key_padding_mask": np.zeros((2, 3), bool),
        "memory_key_padding_mask": np.zeros((2, 5), bool),
    }
    error = refused(saved(tmp_path, inputs))
    assert "memory has shape [2, 5, 12]" in error.message
    assert "its dimension 16 must be 16" in error.hint


def test_a_mask_for_each_head_must_have_a_matrix_for_each_head(tmp_path: Path) -> None:
    contract = graphs_of(MyTransformer(16, 2, 1, 1, 24), "tgt_mask:3d")["decoder"].contract
    inputs = {"tgt": np.ones((3, 4, 16), np.float32), "memory": np.ones((5, 4, 16), np.float32)}
    good = saved(tmp_path, {**inputs, "tgt_mask": np.zeros((8, 3, 3), np.float32)})
    assert read_cases([good], [contract])["decoder"][0].words == "mine.npz, target 3, batch 4, source 5"
    for heads in (4, 7, 9):
        error = refused(saved(tmp_path, {**inputs, "tgt_mask": np.zeros((heads, 3, 3), np.float32)}), [contract])
        assert f"tgt_mask has shape [{heads}, 3, 3]" in error.message
        assert "its dimension 2*batch must be 8" in error.hint


# --- files that cannot be read ---------------------------------------------------------------------------------------


def objects(path: Path) -> None:
    np.savez(path, src=np.array([{"a": 1}], dtype=object), src_key_padding_mask=np.zeros((1, 1), bool))


def truncated(path: Path) -> None:
    np.savez(path, **encoder_inputs())
    path.write_bytes(path.read_bytes()[:-200])


def damaged(path: Path) -> None:
    np.savez_compressed(path, **encoder_inputs(9, 20))
    data = bytearray(path.read_bytes())
    data[100:140] = bytes(40)
    path.write_bytes(data)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("src,tgt\n1,2\n"),
        lambda path: path.write_bytes(b"PK\x03\x04 and so on"),
        lambda path: path.mkdir(),
        objects,
        truncated,
        damaged,
    ],
    ids=["empty", "text", "no zip", "folder", "pickled arrays", "truncated", "damaged"],
)
def test_what_is_not_an_npz_of_plain_arrays_is_refused(make: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    make(path)
    error = refused(path)
    assert re.search(r"not an \.npz file of plain arrays", error.message)
    assert "numpy.savez" in error.hint


def test_a_single_array_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "mine.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    assert "is one array, not a case" in refused(tmp_path / "mine.npz").message


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "mine.npz").message


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_float_mask_without_meaning_is_refused(value: float, tmp_path: Path) -> None:
    contract = graphs_of(MyTransformer(16, 2, 1, 1, 24), "src_key_padding_mask:float")["encoder"].contract
    mask = np.zeros((2, 5), np.float32)
    inputs = {"src": np.ones((5, 2, 16), np.float32), "src_key_padding_mask": mask}
    mask[0, 1] = -np.inf
    assert read_cases([saved(tmp_path, inputs)], [contract])
    mask[1, 1] = value
    assert "NaN or infinity" in refused(saved(tmp_path, inputs), [contract]).message


def test_one_path_may_stand_alone_and_be_a_string(tmp_path: Path) -> None:
    path = saved(tmp_path, encoder_inputs())
    for files in (path, str(path), [str(path)]):
        assert list(read_cases(files, CONTRACTS)) == ["encoder"]  # type: ignore[arg-type]


@pytest.mark.parametrize(("numbers", "group"), [({"max_length": 4}, "own"), ({"max_length": 0}, "range"),
    ({"max_length": 4, "min_length": 5}, "range"), ({"max_length": 4, "num_beams": 2, "num_hypotheses": 3}, "range"),
    ({"max_length": 4, "length_penalty": -1}, "range")])  # fmt: skip
def test_numbers_out_of_range_are_for_files_that_bring_them_into_it(numbers: dict[str, float], group: str) -> None:
    contract = graphs_of(translation(max_length=20))["generate"].contract
    inputs = {"src": np.ones((1, 3), np.int64), "src_key_padding_mask": np.zeros((1, 3), bool)}
    inputs |= {name: np.array(value, contract.input(name).dtype) for name, value in numbers.items()}
    assert own_case("mine", inputs, contract).group == group
