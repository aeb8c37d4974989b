"""A bundle that failed stays failed in every command and report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bundles import tiny_bundle
from cli_support import Run
from mytx.exporter.bundle.manifest import MANIFEST
from mytx.exporter.cli import main as cli


@pytest.fixture
def failed(tmp_path: Path) -> Path:
    """A bundle whose files are right, and that failed against the class that its checkpoint was trained in."""
    folder = tmp_path / "bundle.failed"
    shutil.copytree(tiny_bundle(), folder)
    values = json.loads((folder / MANIFEST).read_text())
    row: dict[str, Any] = {**values["parity"]["graphs"][0], "runtime": "reference training:build", "passed": False}
    row["findings"] = [{"check": "structure", "message": "case 00: 1 where the model gives 2", "case": ""}]
    values["parity"]["graphs"].append(row)
    values["parity"]["passed"] = False
    (folder / MANIFEST).write_text(json.dumps(values))
    return folder


def test_verify_says_what_failed_when_it_was_made(failed: Path, run: Run, tmp_path: Path) -> None:
    result = run("verify", failed, "--junit", tmp_path / "parity.xml", "--html", tmp_path / "parity.html")
    assert result.code == 1
    assert "reference training:build, when it was made" in result.out
    assert "FAILED: the PyTorch model differs from the reference training:build.\n" in result.out
    suites = ElementTree.parse(tmp_path / "parity.xml").getroot()
    assert int(suites.attrib["failures"]) == 1
    assert "do not deploy this" in (tmp_path / "parity.html").read_text()


def test_what_fails_now_is_not_said_twice(failed: Path, run: Run) -> None:
    values = json.loads((failed / MANIFEST).read_text())
    for row in values["parity"]["graphs"]:
        if row["runtime"] == "onnxruntime":
            row["passed"] = False
    (failed / MANIFEST).write_text(json.dumps(values))
    found = json.loads(run("verify", failed, "--json").out)["graphs"]
    runtimes = [row["runtime"] for row in found if not row["passed"]]
    assert runtimes.count("onnxruntime, when it was made") == 3  # for each graph: it passes its stored cases
    assert len(runtimes) == 4


def test_quiet_does_not_keep_a_failure_back(failed: Path, run: Run) -> None:
    result = run("verify", failed, "--quiet")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: parity failed: encoder, PyTorch")
    assert len(result.err.splitlines()) == 2


def test_a_damaged_report_in_the_manifest_is_bad_input(failed: Path, run: Run) -> None:
    values = json.loads((failed / MANIFEST).read_text())
    del values["parity"]["graphs"][0]["runtime"]
    (failed / MANIFEST).write_text(json.dumps(values))
    result = run("verify", failed)
    assert (result.code, "is damaged" in result.err) == (2, True)


def test_a_bundle_that_is_refused_is_a_test_that_fails(run: Run, tmp_path: Path) -> None:
    folder, junit = tmp_path / "bundle", tmp_path / "parity.xml"
    shutil.copytree(tiny_bundle(), folder)
    content = (folder / "full.onnx").read_bytes()
    (folder / "full.onnx").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    junit.write_text("<old/>")
    result = run("verify", folder, "--junit", junit)
    assert result.code == 2
    (case,) = ElementTree.parse(junit).getroot().iter("testcase")
    failure = case.find("failure")
    assert failure is not None
    assert "full.onnx has changed" in failure.attrib["message"]


def test_a_bundle_without_graphs_is_refused(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(tiny_bundle(), folder)
    values = json.loads((folder / MANIFEST).read_text())
    values["graphs"] = {}
    for path in folder.glob("*.onnx"):
        path.unlink()
    values["files"] = [entry for entry in values["files"] if not entry["path"].endswith(".onnx")]
    (folder / MANIFEST).write_text(json.dumps(values))
    result = run("verify", folder)
    assert (result.code, "holds no graphs" in result.err) == (2, True)


@pytest.mark.parametrize(("name", "words"), [("torch", "verify with the stored cases"), ("onnxscript", "pip install")])
def test_a_library_that_is_not_there_is_no_bug(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    def command(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError(f"No module named '{name}.nn'", name=f"{name}.nn")

    monkeypatch.setattr(cli, "cli", command)
    result = run("locate", "bundle")
    assert result.code == 2
    assert f"this needs {name}, which is not installed" in result.err
    assert words in result.err
