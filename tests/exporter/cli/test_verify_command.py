"""``mytx-export verify``: a bundle that is right passes, and one that is not fails or is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from bundles import copy_of_bundle, relist, tiny_bundle, tiny_model
from cli_support import HALVES, assert_refused
from mytx.exporter import verify_bundle
from mytx.exporter.parity.stored import read_stored


def test_verify_passes_on_a_whole_bundle(run):
    code, out, err = run("verify", tiny_bundle())
    assert (code, err) == (0, "")
    assert out.startswith("Passed: 3 files agree with PyTorch in ")
    assert out.splitlines()[-1].startswith("All files in ")
    assert out.count("passed") == 3


def test_verify_gives_json(run):
    code, out, _ = run("verify", tiny_bundle(), "--json", "-q")
    result = json.loads(out)
    assert code == 0
    assert result["passed"] is True
    assert len(result["manifest_sha256"]) == 64
    assert {row["graph"] for row in result["graphs"]} == {"encoder", "decoder", "full"}
    assert all(row["cases"] >= (20 if row["runtime"] == "onnxruntime" else 8) for row in result["graphs"])
    assert all(row["compared"] > 0 for row in result["graphs"])


def test_verify_does_not_import_torch():
    code = (
        "import sys; from mytx.exporter import verify_bundle, open_bundle;"
        f"assert verify_bundle({str(tiny_bundle())!r}).passed;"
        f"open_bundle({str(tiny_bundle())!r}).translate('abc', 3);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def change_weight(model: onnx.ModelProto) -> None:
    tensor = next(t for t in model.graph.initializer if t.name.endswith("layers.0.linear1.weight"))
    values = numpy_helper.to_array(tensor).copy()
    values[0, 0] += 1e-2
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def change_epsilon(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f = 1e-3


@pytest.mark.parametrize("fault", [change_weight, change_epsilon])
@pytest.mark.parametrize("graph", ["encoder", "decoder", "full"])
def test_verify_fails_with_1_when_a_graph_computes_something_else(fault, graph, run, tmp_path):
    bundle = copy_of_bundle(tmp_path)
    model = onnx.load(bundle / f"{graph}.onnx")
    fault(model)
    onnx.save(model, bundle / f"{graph}.onnx")
    relist(bundle)
    code, out, _ = run("verify", bundle, "--json")
    rows = json.loads(out)["graphs"]
    assert code == 1
    own = [row for row in rows if row["runtime"] != HALVES]
    assert all(row["passed"] is (row["graph"] != graph) for row in own)
    (halves,) = [row for row in rows if row["runtime"] == HALVES]
    assert halves["passed"] is (graph == "full")  # it is the encoder and the decoder, not the full file


def test_verify_fails_when_no_case_is_stored(tmp_path):
    bundle = copy_of_bundle(tmp_path)
    index = {name: [] for name in ("encoder", "decoder", "full")}
    np.savez(bundle / "reference.npz", index=np.frombuffer(json.dumps(index).encode(), dtype=np.uint8))
    relist(bundle)
    assert not verify_bundle(bundle).passed


@pytest.mark.parametrize("keep", [[], ["encoder"]])
def test_verify_refuses_a_bundle_whose_cases_lack_a_graph(keep, tmp_path, run):
    bundle = copy_of_bundle(tmp_path)
    index = {name: [] for name in keep}
    np.savez(bundle / "reference.npz", index=np.frombuffer(json.dumps(index).encode(), dtype=np.uint8))
    relist(bundle)
    assert_refused(run("verify", bundle), "reference.npz")


def test_stored_cases_with_a_pickle_are_refused(tmp_path, run):
    bundle = copy_of_bundle(tmp_path)
    np.savez(bundle / "reference.npz", index=np.array([{"a": 1}], dtype=object))
    relist(bundle)
    assert_refused(run("verify", bundle))


def test_stored_cases_hold_the_reference_of_pytorch():
    stored = read_stored(tiny_bundle() / "reference.npz")["full"]
    model = tiny_model().double().eval()
    for case, outputs in zip(stored.plan, stored.expected, strict=True):
        with torch.no_grad():
            logits = model(*(torch.from_numpy(case.inputs[name]) for name in case.inputs)).numpy()
        expected = outputs["logits"]
        assert expected.full_shape == logits.shape
        np.testing.assert_allclose(expected.values, logits.ravel()[expected.positions], rtol=1e-12, atol=1e-12)
        if case.group == "identities":  # that of the case that it must agree with
            assert expected.scale >= np.abs(expected.values).max()
        else:
            assert expected.scale == pytest.approx(np.abs(logits).max(), rel=1e-12)


def test_an_unverified_bundle_cannot_be_verified_later(run, tmp_path):
    bundle = copy_of_bundle(tmp_path)
    (bundle / "reference.npz").unlink()
    relist(bundle)
    assert_refused(run("verify", bundle), "--no-verify")
