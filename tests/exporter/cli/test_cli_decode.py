"""Graphs that decode on the command line: selected alone, refused where impossible, and verified later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from bundles import copy_of_bundle, relist, tiny_model, whole_bundle
from cli_support import Run, assert_refused, names
from mytx.exporter.contracts.contract import GRAPHS, SEARCHES
from mytx.exporter.errors import OptionError
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.pipeline import choose

# --- which graphs there are ------------------------------------------------------------------------------------------


def test_what_is_exported_is_what_the_format_can_hold() -> None:
    graphs = graphs_of(tiny_model())
    assert choose(graphs, (), ["onnx"]) == GRAPHS
    assert choose(graphs, (), ["pt2"]) == ("encoder", "decoder", "full")
    assert choose(graphs, (), ["torchscript"]) == ("encoder", "decoder", "full", "generate")
    assert choose(graphs, (), ["pt2", "torchscript"]) == ("encoder", "decoder", "full", "generate")
    assert choose(graphs, ("generate", "encoder"), ["pt2", "torchscript"]) == ("encoder", "generate")
    with pytest.raises(OptionError, match="pt2 and torchscript cannot hold the step graph"):
        choose(graphs, ("step",), ["pt2", "torchscript"])


@pytest.mark.parametrize(
    ("command", "component", "words"),
    [
        ("pt2", "step", ["pt2 cannot hold the step graph", "encoder, decoder, full"]),
        ("pt2", "generate", ["pt2 cannot hold the generate graph", "encoder, decoder, full"]),
        ("torchscript", "greedy", ["torchscript cannot hold the greedy graph", "encoder, decoder, full, generate"]),
    ],
)
def test_a_format_that_cannot_hold_a_graph_says_so(
    command: str, component: str, words: list[str], run: Run, saved: Path, tmp_path: Path
) -> None:
    assert_refused(run(command, saved, "-q", "-o", tmp_path / "out", "--component", component), *words)
    assert names(tmp_path) == []


# --- one graph alone -------------------------------------------------------------------------------------------------


def test_a_search_alone_needs_no_file_of_its_parts_and_takes_cases_of_ones_own(
    run: Run, saved: Path, tmp_path: Path
) -> None:
    case = {"src": np.array([[4, 5, 6]]), "src_key_padding_mask": np.zeros((1, 3), bool)}
    np.savez(tmp_path / "mine.npz", **case, num_beams=np.array(2), max_length=np.array(6))
    options = ("--component", "generate", "--plan", "quick", "--case", tmp_path / "mine.npz", "--json")
    result = run("onnx", saved, "-o", tmp_path / "out", *options)
    assert result.code == 0, result.err
    rows = result.json()["graphs"]
    assert {(row["graph"], row["format"]) for row in rows} == {("generate", "onnx")}
    assert [path.name for path in (tmp_path / "out").glob("*.onnx")] == ["generate.onnx"]
    shown = run("verify", tmp_path / "out", "--show-plan", "--case", tmp_path / "mine.npz")
    assert "mine.npz, batch 1, source 3" in shown.out
    assert run("verify", tmp_path / "out", "-q").code == 0


# --- a bundle of all -------------------------------------------------------------------------------------------------


def test_a_bundle_of_all_graphs_is_verified_without_and_with_the_model(run: Run) -> None:
    bundle = whole_bundle()
    for options in ((), ("--plan", "quick")):
        result = run("verify", bundle, "--json", *options)
        assert result.code == 0, result.err
        rows = result.json()["graphs"]
        assert {row["graph"] for row in rows if row["format"] == "onnx"} == set(GRAPHS)
        assert all(row["passed"] for row in rows)
        assert any(row["runtime"] == "onnxruntime, N cached steps" for row in rows) or not options


def test_a_bundle_of_all_graphs_is_inspected(run: Run) -> None:
    result = run("inspect", whole_bundle())
    assert result.code == 0
    for name in GRAPHS:
        assert f"{name}.onnx" in result.out or name in result.out
    for word in ("past_key_0", "num_beams", "length_penalty", "hypotheses"):
        assert word in result.out


def test_the_plan_of_a_search_can_be_looked_at(run: Run) -> None:
    anew = run("verify", whole_bundle(), "--show-plan", "--plan", "standard", "--json").json()["graphs"]["full"]
    assert "steps" in {case["group"] for case in anew}  # what N cached steps are asked for
    result = run("verify", whole_bundle(), "--show-plan")
    assert result.code == 0
    assert "num_beams 4, num_hypotheses 4" in result.out
    assert "past 4" in result.out


@pytest.mark.parametrize("name", ["step", *SEARCHES])
def test_a_file_that_computes_something_else_is_found_later(name: str, run: Run, tmp_path: Path) -> None:
    """By the stored cases, without PyTorch."""
    bundle = copy_of_bundle(tmp_path, whole_bundle())
    model = onnx.load(bundle / f"{name}.onnx")
    bias = next(tensor for tensor in model.graph.initializer if tensor.name == "classification.bias")
    values = np.frombuffer(bias.raw_data, np.float32).copy()
    values[3] += 5
    bias.raw_data = values.tobytes()
    onnx.save(model, bundle / f"{name}.onnx")
    relist(bundle)
    result = run("verify", bundle)
    assert result.code == 1
    assert f"{name}.onnx" in result.out
    assert "mytx-export locate" not in result.out  # there is no place to look for
