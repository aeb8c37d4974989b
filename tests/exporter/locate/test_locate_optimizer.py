"""``mytx-export locate`` when the file is right and onnxruntime's optimiser makes it wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from bundles import copy_of_bundle, decoding_bundle, edit_manifest, relist, tiny_bundle, whole_bundle
from cli_support import Run, assert_refused, names
from mytx.exporter.bundle.manifest import read_manifest
from mytx.exporter.contracts.contract import CACHED
from mytx.exporter.formats.table import PLAIN
from planting_rewrites import norm_turned_round

NORM = "LayerNormFusionL1"
ADVICE = f'onnxruntime.InferenceSession(path, disabled_optimizers=["{NORM}"])'

known_version = pytest.mark.skipif(
    not onnxruntime.__version__.startswith("1.32."), reason="the planted fault is one of onnxruntime 1.32"
)


def planted(bundle: Path, name: str, fault: Callable[[onnx.GraphProto], object] = norm_turned_round) -> Path:
    """The bundle with a fault in the file of one graph, and a manifest that knows it."""
    model = onnx.load(bundle / f"{name}.onnx")
    fault(model.graph)
    onnx.save(model, bundle / f"{name}.onnx")
    relist(bundle)
    return bundle


def another_bias(graph: onnx.GraphProto) -> None:
    bias = next(tensor for tensor in graph.initializer if tensor.name == "classification.bias")
    values = np.frombuffer(bias.raw_data, np.float32).copy()
    values[3] += 5
    bias.raw_data = values.tobytes()


def without_cases(bundle: Path) -> Path:
    """As ``--no-verify`` leaves a bundle."""
    (bundle / "reference.npz").unlink()
    relist(bundle)
    return bundle


# --- a file whose modules are there ----------------------------------------------------------------------------------


@known_version
@pytest.mark.parametrize("name", PLAIN)
def test_the_rewrite_is_named_where_no_module_is_at_fault(name: str, run: Run, tmp_path: Path) -> None:
    bundle = planted(copy_of_bundle(tmp_path), name)
    result = run("locate", bundle, "--graph", name, "--json")
    assert result.code == 1
    (row,) = result.json()["graphs"]
    assert row["introduced"] == []
    assert row["tried"] == row["optimizer"]["cases"] > 10
    assert row["optimizer"]["disabled_optimizers"] == [NORM]
    assert row["optimizer"]["level"] == "basic"
    assert row["optimizer"]["nodes"]["LayerNormalization"] == 1
    assert result.json()["reproductions"] == {}
    assert names(tmp_path) == ["bundle"]


@known_version
def test_people_are_told_the_rewrite_and_what_to_do_meanwhile(run: Run, tmp_path: Path) -> None:
    result = run("locate", planted(copy_of_bundle(tmp_path), "decoder"), "--graph", "decoder")
    assert result.code == 1
    assert "decoder: computes what the model computes" in result.out
    assert f"onnxruntime's optimiser makes it wrong, by {NORM}" in result.out
    assert "from level basic on, and none without" in result.out
    assert "+1 LayerNormalization" in result.out
    assert ADVICE in result.out


@known_version
def test_quiet_says_no_more_than_where_something_was_found(run: Run, tmp_path: Path) -> None:
    bundle = planted(copy_of_bundle(tmp_path), "decoder")
    result = run("locate", bundle, "--no-reproduction", "--quiet")
    assert (result.code, result.out) == (1, "")
    assert result.err.splitlines()[0] == "error: found in decoder"


@known_version
def test_verify_says_that_locate_can_name_it(run: Run, tmp_path: Path) -> None:
    result = run("verify", planted(copy_of_bundle(tmp_path), "encoder"))
    assert result.code == 1
    assert "By which rewrite of onnxruntime's optimiser: mytx-export locate" in result.out


def test_an_honest_graph_is_tried_at_each_level_too(run: Run) -> None:
    result = run("locate", tiny_bundle(), "--graph", "encoder", "--no-reproduction", "--json")
    assert result.code == 0
    (row,) = result.json()["graphs"]
    assert row["optimizer"] is None
    assert row["tried"] > 10
    assert "onnxruntime gives what the model gives, at each level of optimisation" in result.err


def test_without_stored_cases_the_place_is_looked_for_and_the_rest_is_said(run: Run, tmp_path: Path) -> None:
    result = run("locate", without_cases(copy_of_bundle(tmp_path)), "--graph", "encoder")
    assert result.code == 0
    assert "computes what the model computes" in result.out
    assert "the bundle has no reference cases, as after --no-verify" in result.out


# --- a file whose modules are fused ----------------------------------------------------------------------------------


@known_version
@pytest.mark.parametrize("name", CACHED)
def test_the_rewrite_is_named_in_a_graph_that_decodes(name: str, run: Run, tmp_path: Path) -> None:
    bundle = planted(copy_of_bundle(tmp_path, whole_bundle()), name)
    result = run("locate", bundle, "--graph", name, "--json")
    assert result.code == 1
    (row,) = result.json()["graphs"]
    assert (row["graph"], row["introduced"], row["compared"]) == (name, [], 0)
    assert row["optimizer"]["disabled_optimizers"] == [NORM]
    assert ADVICE in result.err
    assert "there is no place to name" in result.err


def test_without_a_graph_all_are_looked_into(run: Run) -> None:
    result = run("locate", whole_bundle(), "--no-reproduction", "--json")
    assert result.code == 0
    assert {row["graph"] for row in result.json()["graphs"]} == {*PLAIN, *CACHED}
    assert all(row["optimizer"] is None and row["tried"] > 0 for row in result.json()["graphs"])


def test_of_a_bundle_that_failed_only_what_failed_is_looked_into(run: Run, tmp_path: Path) -> None:
    bundle = copy_of_bundle(tmp_path, whole_bundle())
    parity = read_manifest(bundle).parity
    for row in parity["graphs"]:
        row["passed"] &= row["graph"] != "step"
    edit_manifest(bundle, parity=parity)
    result = run("locate", bundle, "--json")
    assert [row["graph"] for row in result.json()["graphs"]] == ["step"]


def test_a_file_that_is_wrong_itself_is_not_the_optimisers_doing(run: Run, tmp_path: Path) -> None:
    bundle = planted(copy_of_bundle(tmp_path, whole_bundle()), "step", another_bias)
    result = run("locate", bundle, "--graph", "step")
    assert result.code == 1
    assert "with its optimiser off, so it is not the optimiser's doing" in result.out
    assert "disabled_optimizers" not in result.out


@pytest.mark.parametrize("name", CACHED)
def test_a_graph_that_decodes_has_to_have_stored_cases(name: str, run: Run) -> None:
    refused = run("locate", decoding_bundle(), "--graph", name)
    assert_refused(refused, f"in {name} the model's modules are fused", "no reference cases", "without --no-verify")


def test_a_bundle_with_nothing_to_look_into_is_refused(run: Run) -> None:
    assert_refused(run("locate", decoding_bundle()), "the model's modules are fused", "without --no-verify")


def test_there_is_no_block_to_reproduce_where_modules_are_fused(run: Run, tmp_path: Path) -> None:
    refused = run("locate", whole_bundle(), "--graph", "step", "-o", tmp_path / "small")
    assert_refused(refused, "in step there is no place to name: the model's modules are fused", "omit --output")
    assert list(tmp_path.iterdir()) == []


def test_stored_cases_that_are_damaged_are_said(run: Run, tmp_path: Path) -> None:
    bundle = copy_of_bundle(tmp_path)
    shutil.copy(bundle / "encoder.onnx", bundle / "reference.npz")
    relist(bundle)
    assert_refused(run("locate", bundle, "--graph", "encoder"), "reference.npz is damaged")
