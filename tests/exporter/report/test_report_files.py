"""The contents of ``--junit``, ``--html`` and ``parity.html`` for bundles that pass, fail or are refused."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from bundles import copy_of_bundle, relist, tiny_bundle
from cli_support import Run, assert_refused, names
from mytx.exporter import pipeline, verify_bundle
from mytx.exporter.parity.report import Finding, ParityReport
from mytx.exporter.parity.stored import read_stored

TINY_FILES = ("encoder.onnx", "decoder.onnx", "full.onnx")


def damage(bundle: Path, graph: str) -> None:
    """Change a weight of a graph, as a broken tool would, and make the manifest fit it."""
    path = bundle / f"{graph}.onnx"
    model = onnx.load(path)
    tensor = next(item for item in model.graph.initializer if item.name.endswith("layers.0.linear1.weight"))
    values = numpy_helper.to_array(tensor).copy()
    values[0, 0] += 1e-2
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx.save(model, path)
    relist(bundle)


def failed_tests(path: Path) -> set[tuple[str, str]]:
    tests = ElementTree.parse(path).getroot().iter("testcase")
    return {(str(test.get("classname")), str(test.get("name"))) for test in tests if test.find("failure") is not None}


# --- verify ----------------------------------------------------------------------------------------------------------


def test_verify_writes_both_and_says_what_it_said_before(run: Run, tmp_path: Path) -> None:
    places = tmp_path / "parity.xml", tmp_path / "page.html"
    result = run("verify", tiny_bundle(), "--junit", places[0], "--html", places[1], "--json")
    assert result.code == 0
    assert set(result.json()) == {"passed", "bundle", "graphs", "manifest_sha256", "seconds", "task"}
    assert names(tmp_path) == ["page.html", "parity.xml"]
    root = ElementTree.parse(places[0]).getroot()
    assert (root.get("failures"), [suite.get("name") for suite in root]) == ("0", [f"parity.{f}" for f in TINY_FILES])
    properties = {item.get("name"): item.get("value") for item in root.iter("property")}
    assert properties["manifest_sha256"] == result.json()["manifest_sha256"]
    assert {"mytx", "onnxruntime", "python"} <= set(properties)
    page = places[1].read_text()
    assert "Yes, passed" in page
    assert result.json()["manifest_sha256"] in page


@pytest.mark.parametrize("graph", ["encoder", "decoder", "full"])
def test_a_fault_fails_the_tests_of_its_file_and_the_page_names_it(graph: str, run: Run, tmp_path: Path) -> None:
    bundle = copy_of_bundle(tmp_path)
    damage(bundle, graph)
    junit, html = tmp_path / "parity.xml", tmp_path / "page.html"
    assert run("verify", bundle, "--junit", junit, "--html", html).code == 1
    failed = failed_tests(junit)
    own = {test for test in failed if "decoder(encoder)" not in test[1]}
    assert {classname for classname, _ in own} == {f"parity.{graph}.onnx"}
    assert {name for _, name in own} >= {
        f"{runtime}: {group}"
        for runtime in ("onnxruntime", "onnx.reference, float64")
        for group in ("shapes", "disturbed", "identities")
    }
    assert not any(name.endswith((": interface", ": loading and running")) for _, name in failed)
    halves = set() if graph == "full" else {"onnxruntime, decoder(encoder): shapes"}  # each shape and mask once
    assert {name for _, name in failed - own} == halves
    page = html.read_text()
    assert "No, failed" in page
    assert f"<h3>{graph}.onnx" in page
    assert page.index("What failed") < page.index("What was tried")


def test_what_does_not_load_and_what_has_another_interface_fails_where_one_looks(run: Run, tmp_path: Path) -> None:
    bundle = copy_of_bundle(tmp_path)
    model = onnx.load(bundle / "decoder.onnx")
    model.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(model, bundle / "decoder.onnx")
    model = onnx.load(bundle / "encoder.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "other"
    onnx.save(model, bundle / "encoder.onnx")
    relist(bundle)
    assert run("verify", bundle, "--junit", tmp_path / "parity.xml").code == 1
    failed = failed_tests(tmp_path / "parity.xml")
    assert ("parity.decoder.onnx", "onnxruntime: loading and running") in failed
    assert ("parity.decoder.onnx", "onnxruntime: shapes") in failed
    assert ("parity.encoder.onnx", "onnxruntime: interface") in failed
    assert ("parity.encoder.onnx", "onnxruntime: shapes") not in failed


def test_every_finding_of_a_real_report_is_in_the_file(tmp_path: Path, run: Run) -> None:
    bundle = copy_of_bundle(tmp_path)
    damage(bundle, "encoder")
    run("verify", bundle, "--junit", tmp_path / "parity.xml")
    text = "\n".join(found.text or "" for found in ElementTree.parse(tmp_path / "parity.xml").getroot().iter("failure"))
    for row in verify_bundle(bundle).report.graphs:
        for finding in row.findings:
            assert f"{finding.check}: {finding.message}" in text


def test_cases_that_were_stored_without_a_spread_are_verified_and_shown(run: Run, tmp_path: Path) -> None:
    bundle = copy_of_bundle(tmp_path)
    with np.load(bundle / "reference.npz") as arrays:
        kept = dict(arrays)
    index = json.loads(kept["index"].tobytes())
    for cases in index.values():
        for case in cases:
            for output in case["outputs"].values():
                output.pop("spread", None)
    kept["index"] = np.frombuffer(json.dumps(index).encode(), dtype=np.uint8)
    np.savez(bundle / "reference.npz", **kept)
    relist(bundle)
    assert run("verify", bundle, "--html", tmp_path / "page.html").code == 0
    assert "PyTorch's own are not known" in (tmp_path / "page.html").read_text().replace("&#39;", "'")


# --- the bundle ------------------------------------------------------------------------------------------------------


def test_a_bundle_has_the_page_the_details_and_a_small_manifest() -> None:
    bundle = tiny_bundle()
    page = (bundle / "parity.html").read_text()
    parity = json.loads((bundle / "parity.json").read_text())
    manifest = json.loads((bundle / "manifest.json").read_text())
    listed = {entry["path"]: entry["sha256"] for entry in manifest["files"]}
    assert "Yes, passed" in page
    assert all(digest in page for path, digest in listed.items() if path != "parity.html")
    assert list(listed) == sorted(listed)
    report = ParityReport.from_dict(parity)
    assert [len(row.details) for row in report.graphs] == [row.cases for row in report.graphs]
    assert all("details" not in row and "spread" not in row for row in manifest["parity"]["graphs"])
    assert [row["runtime"] for row in manifest["parity"]["graphs"]] == [row.runtime for row in report.graphs]
    stored = read_stored(bundle / "reference.npz")
    whole = next(row for row in report.graphs if (row.graph, row.runtime) == ("full", "onnxruntime"))
    assert {case.name for case in stored["full"].plan} <= {case.name for case in whole.details}


def test_the_page_of_a_bundle_draws_every_case_of_every_file() -> None:
    report = ParityReport.from_dict(json.loads((tiny_bundle() / "parity.json").read_text()))
    files = {(row.graph, row.format) for row in report.graphs if row.format != "eager"}
    cases = {(row.graph, row.format, case.name) for row in report.graphs for case in row.details}
    expected = sum((graph, format_name) in files for graph, format_name, _ in cases)
    page = (tiny_bundle() / "parity.html").read_text()
    assert page.count('<circle class="mark"') == 2 * expected


def test_each_case_is_a_line_of_parity_json() -> None:
    text = (tiny_bundle() / "parity.json").read_text()
    report = ParityReport.from_dict(json.loads(text))
    assert report.to_json() == text
    lines = [line for line in text.splitlines() if line.startswith('        {"name": ')]
    assert len(lines) == sum(len(row.details) for row in report.graphs)


@pytest.mark.usefixtures("quick")
def test_a_bundle_that_failed_has_a_page_too_and_junit_names_the_weights(
    folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mytx.exporter.parity import prove

    monkeypatch.setattr(prove, "find_weights", lambda *_, **__: [Finding("weights", "a weight differs")])
    junit = tmp_path / "parity.xml"
    result = run("onnx", folder, "-o", tmp_path / "bundle", "--component", "encoder", "--junit", junit)
    assert result.code == 1
    assert failed_tests(junit) == {("parity.encoder.onnx", "weights")}
    page = (tmp_path / "bundle.failed" / "parity.html").read_text()
    assert "No, failed" in page
    assert "a weight differs" in page


@pytest.mark.usefixtures("quick")
def test_an_export_writes_junit_and_its_weights_have_a_test(folder: Path, run: Run, tmp_path: Path) -> None:
    junit = tmp_path / "parity.xml"
    assert run("onnx", folder, "-o", tmp_path / "bundle", "--component", "encoder", "--junit", junit, "-q").code == 0
    root = ElementTree.parse(junit).getroot()
    tests = [(test.get("classname"), test.get("name")) for test in root.iter("testcase")]
    assert ("parity.encoder.onnx", "weights") in tests
    assert ("parity.encoder, PyTorch", "PyTorch: identities") in tests
    assert (root.get("failures"), failed_tests(junit)) == ("0", set())
    assert float(root.get("time", "")) > 0


@pytest.mark.usefixtures("quick")
def test_without_verification_the_page_says_so(folder: Path, run: Run, tmp_path: Path) -> None:
    assert run("onnx", folder, "-o", tmp_path / "bundle", "--component", "encoder", "--no-verify").code == 0
    assert "Not verified" in (tmp_path / "bundle" / "parity.html").read_text()


def test_an_export_that_is_refused_fails_in_junit_and_not_what_passed_before(
    folder: Path, run: Run, tmp_path: Path
) -> None:
    junit = tmp_path / "parity.xml"
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "mine").write_text("mine")
    junit.write_text("<testsuites failures='0'/>")
    assert_refused(run("onnx", folder, "-o", tmp_path / "bundle", "--junit", junit), "is not a bundle")
    assert failed_tests(junit) == {("parity.export", "refused: loading and running")}
    assert_refused(run("onnx", tmp_path / "none", "-o", tmp_path / "new", "--junit", junit), "no such file")
    assert "no such file" in junit.read_text()


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [(OSError(errno.ENOSPC, "No space left on device"), 2, "No space left"), (RuntimeError("planted"), 3, "planted")],
)
def test_any_error_of_an_export_fails_in_junit(
    error: Exception, code: int, words: str, folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    junit = tmp_path / "parity.xml"
    junit.write_text("<testsuites failures='0'/>")
    monkeypatch.setattr(pipeline, "export_bundle", fail)
    assert run("onnx", folder, "-o", tmp_path / "new", "--junit", junit).code == code
    assert failed_tests(junit) == {("parity.export", "refused: loading and running")}
    assert words in junit.read_text()
    assert run("onnx", folder, "-o", tmp_path / "new", "--junit", junit, "--component", "typo").code == 2
    assert "typo" in junit.read_text()
