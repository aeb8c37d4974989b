"""A bundle is verified against the model rebuilt from it: other plans, the user's cases, and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from bundles import copy_of_bundle, edit_manifest, relist, tiny_bundle, tiny_model
from mytx.exporter import BundleError, OptionError, open_bundle, verify_bundle
from mytx.exporter.bundle.rebuild import rebuild
from mytx.exporter.cases.identities import whole_plan

GRAPHS = ("encoder", "decoder", "full")


def case_for_the_encoder(path: Path, source: int = 5) -> Path:
    np.savez(path, src=np.full((2, source), 3), src_key_padding_mask=np.zeros((2, source), bool))
    return path


def test_the_model_is_rebuilt_bit_for_bit():
    subject = rebuild(open_bundle(tiny_bundle()))
    model, graphs = subject.model, subject.graphs
    expected = tiny_model().state_dict()
    assert list(graphs) == list(GRAPHS)
    assert set(model.state_dict()) == set(expected)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor.view(torch.int32), expected[name].view(torch.int32))


@pytest.mark.parametrize("level", ["quick", pytest.param("thorough", marks=pytest.mark.slow)])
def test_a_bundle_is_verified_on_another_plan(level):
    check = verify_bundle(tiny_bundle(), level=level)
    contracts = {name: entry.contract for name, entry in open_bundle(tiny_bundle()).manifest.of_format("onnx").items()}
    assert check.passed
    cases = {name: len(whole_plan(contract, level)) for name, contract in contracts.items()}
    found = {report.graph: report.cases for report in check.report.graphs if report.runtime == "onnxruntime"}
    assert found == cases
    runtimes = {report.runtime for report in check.report.graphs if report.format == "eager"}
    assert runtimes == {"PyTorch", "PyTorch, decoder(encoder)"}


def test_own_cases_are_verified_after_the_plan(tmp_path):
    said = []
    own = [case_for_the_encoder(tmp_path / "mine.npz")]
    check = verify_bundle(tiny_bundle(), level="quick", own=own, progress=said.append)
    assert check.passed
    contracts = {name: entry.contract for name, entry in open_bundle(tiny_bundle()).manifest.of_format("onnx").items()}
    found = {report.graph: report.cases for report in check.report.graphs if report.runtime == "onnxruntime"}
    usual = {name: len(whole_plan(contract, "quick")) for name, contract in contracts.items()}
    assert found == {**usual, "encoder": usual["encoder"] + 1}
    assert any("reference of encoder" in words for words in said)


def test_own_cases_alone_are_tried_with_the_standard_plan(tmp_path):
    check = verify_bundle(tiny_bundle(), own=[case_for_the_encoder(tmp_path / "mine.npz")])
    contract = open_bundle(tiny_bundle()).entry("encoder").contract
    found = [r.cases for r in check.report.graphs if (r.graph, r.runtime) == ("encoder", "onnxruntime")]
    assert found == [len(whole_plan(contract)) + 1]


def test_an_own_case_that_does_not_fit_is_refused_before_anything_is_run(tmp_path):
    said = []
    with pytest.raises(OptionError, match="source is 41") as caught:
        verify_bundle(tiny_bundle(), own=[case_for_the_encoder(tmp_path / "mine.npz", 41)], progress=said.append)
    assert "encoder takes 1 to 40" in caught.value.hint
    assert not any("reference" in words for words in said)


def test_a_fault_that_no_stored_case_shows_is_found_on_another_plan(tmp_path):
    """The stored positions are a sample; the file is changed and the manifest agrees with it."""
    bundle = copy_of_bundle(tmp_path)
    model = onnx.load(bundle / "decoder.onnx")
    norm = next(node for node in model.graph.node if node.op_type == "LayerNormalization")
    (epsilon,) = [attribute for attribute in norm.attribute if attribute.name == "epsilon"]
    epsilon.f = 1e-3
    onnx.save(model, bundle / "decoder.onnx")
    relist(bundle)
    check = verify_bundle(bundle, level="quick")
    assert not check.passed
    failed = {(report.graph, report.format) for report in check.report.graphs if not report.passed}
    assert ("decoder", "onnx") in failed
    assert ("encoder", "onnx") not in failed
    checks = {finding.check for report in check.report.graphs for finding in report.findings}
    assert {"structure", "rounding"} <= checks


def test_other_weights_than_the_manifest_says_are_refused(tmp_path):
    bundle = copy_of_bundle(tmp_path)
    for name in GRAPHS:
        model = onnx.load(bundle / f"{name}.onnx")
        for tensor in model.graph.initializer:
            if tensor.name == "classification.bias":
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + 1, tensor.name))
        onnx.save(model, bundle / f"{name}.onnx")
    relist(bundle)
    with pytest.raises(BundleError, match=r"weights in .* are not those that it was made from") as caught:
        verify_bundle(bundle, level="quick")
    assert caught.value.hint


def test_a_contract_that_is_not_the_models_is_refused(tmp_path):
    bundle = copy_of_bundle(tmp_path)
    graphs = json.loads((bundle / "manifest.json").read_text())["graphs"]
    graphs["encoder.onnx"]["contract"]["layout"] = "sequence first"
    edit_manifest(bundle, graphs=graphs)
    with pytest.raises(BundleError, match=r"encoder\.onnx has a contract that this mytx does not make"):
        verify_bundle(bundle, level="quick")


def test_a_level_that_there_is_not_is_refused():
    with pytest.raises(OptionError, match="there is no plan 'slow'") as caught:
        verify_bundle(tiny_bundle(), level="slow")
    assert "quick, standard, thorough" in caught.value.hint


def test_a_format_that_the_bundle_has_not_is_refused():
    with pytest.raises(OptionError, match="has no pt2 files") as caught:
        verify_bundle(tiny_bundle(), formats=["pt2"])
    assert "onnx" in caught.value.hint


def test_stored_cases_are_run_in_every_way_and_by_way_of_the_halves():
    check = verify_bundle(tiny_bundle())
    assert check.passed
    found = {name: [report.runtime for report in check.report.graphs if report.graph == name] for name in GRAPHS}
    assert len(found["encoder"]) == len(set(found["encoder"])) == 7
    assert found["full"] == [*found["encoder"], "onnxruntime, decoder(encoder)"]
    assert {report.format for report in check.report.graphs} == {"onnx"}
