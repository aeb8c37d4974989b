"""The worked example: a user's model with a contract, with inferred graphs, and as a reference."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper

from custom_support import QUICK, run, strange
from mytx.exporter.cases.plan import few_cases, make_plan
from mytx.exporter.graphs.exportable import as_exportable, custom_model
from mytx.exporter.graphs.user_code import load_weights, make_module, read_contract
from mytx.exporter.locate.places import locate
from mytx.exporter.parity.original import originals
from mytx.exporter.parity.prove import Request, prove
from mytx.exporter.parity.report import GraphReport
from mytx.models import load_checkpoint

pytestmark = pytest.mark.usefixtures("inside_example")


# --- the worked example ----------------------------------------------------------------------------------------------


def test_the_example_is_exported_with_its_contract_and_proven(example_bundle: Path):
    manifest = json.loads((example_bundle / "manifest.json").read_text())

    assert manifest["parity"]["passed"] is True
    assert list(manifest["graphs"]) == ["encoder.onnx", "decoder.onnx", "full.onnx", "generator.onnx"]
    assert manifest["model"]["kind"] == "custom"
    lifted = [row for row in manifest["parity"]["graphs"] if row["allowed"] == 0.1]
    assert {row["graph"] for row in lifted} == {"encoder", "decoder", "full", "generator"}
    assert all(row["compared"] > 1000 for row in lifted)
    # The identities that the contract promises: the future, padding, a sentence alone.
    eager = [row for row in manifest["parity"]["graphs"] if row["format"] == "eager" and row["graph"] == "full"]
    assert [row["cases"] for row in eager] == [9]


def test_its_files_decode_what_pytorch_decodes(example_bundle: Path, example_folder: Path):
    module = make_module("translation:build")
    load_weights(module, example_folder / "model.pt", "translation:build")
    sessions = {
        name: onnxruntime.InferenceSession(example_bundle / f"{name}.onnx")
        for name in ("encoder", "decoder", "generator")
    }
    src = np.random.default_rng(0).integers(3, 120, (13, 1))
    tokens = np.full((1, 1), 1)
    memory = sessions["encoder"].run(None, {"src": src, "src_mask": np.zeros((13, 13), bool)})[0]
    for _ in range(9):
        mask = ~np.tri(len(tokens), dtype=bool)
        hidden = sessions["decoder"].run(None, {"tgt": tokens, "memory": memory, "tgt_mask": mask})[0]
        logits = sessions["generator"].run(None, {"input": hidden})[0]
        tokens = np.concatenate([tokens, logits[-1:].argmax(-1)])

    with torch.inference_mode():
        expected = torch.full((1, 1), 1)
        encoded = module.encode(torch.from_numpy(src), torch.zeros(13, 13))
        for _ in range(9):
            mask = torch.full((len(expected), len(expected)), -torch.inf).triu(1)
            logits = module.generator(module.decode(expected, encoded, mask))
            expected = torch.cat([expected, logits[-1:].argmax(-1)])

    assert tokens.tolist() == expected.tolist()


def test_a_bundle_is_verified_without_the_code_and_with_it(example_bundle: Path, example_folder: Path):
    assert run("verify", str(example_bundle)).code == 0
    with_code = run("verify", str(example_bundle), "--model", "translation:build", *QUICK, "--json")
    assert with_code.code == 0, with_code.err
    rows = json.loads(with_code.out)["graphs"]
    assert {row["format"] for row in rows} == {"eager", "onnx"}
    located = run("locate", str(example_bundle), "--graph", "full", "--model", "translation:build")
    assert (located.code, "computes what the model computes" in located.out) == (0, True)


def test_without_the_code_there_is_nothing_to_compute_a_plan_from(example_bundle: Path):
    for command in (["verify", str(example_bundle), *QUICK], ["locate", str(example_bundle)]):
        result = run(*command)
        assert result.code == 2
        assert "holds a model of your own" in result.err
        assert "--model package.module:build" in result.err


def test_a_fault_in_the_file_is_found_at_the_module_of_the_user(
    example_bundle: Path, example_folder: Path, tmp_path: Path
):

    path = tmp_path / "encoder.onnx"
    model = onnx.load(example_bundle / "encoder.onnx")
    name = "transformer.encoder.layers.1.linear1.bias"
    (bias,) = [tensor for tensor in model.graph.initializer if tensor.name == name]
    wrong = numpy_helper.to_array(bias).copy()
    wrong[3] += 1e-3
    bias.CopyFrom(numpy_helper.from_array(wrong, name))
    onnx.save(model, path)

    module = make_module("translation:build")
    load_weights(module, example_folder / "model.pt", "translation:build")
    subject = custom_model(module, read_contract(Path("contract.py"), module))
    with subject.tracing():
        found = locate(path, subject.graphs["encoder"], few_cases(make_plan(subject.graphs["encoder"].contract)))

    assert [place.module for place in found.introduced] == ["transformer.encoder.layers.1.linear1"]


def test_with_the_usual_arguments_no_contract_is_needed(example_folder: Path):
    result = run("onnx", "model.pt", "--model", "translation:build", "-o", "usual", *QUICK, "--component", "encoder")

    assert result.code == 0, result.err
    assert "encoder: src [source, batch], src_mask [source, source] -> memory [source, batch, 64]" in result.err
    contract = json.loads((example_folder / "usual" / "manifest.json").read_text())["graphs"]["encoder.onnx"][
        "contract"
    ]
    (source,) = [axis for axis in contract["inputs"][0]["axes"] if axis["name"] == "source"]
    assert source["maximum"] == 200
    assert contract["inputs"][0]["limit"] == 120
    assert contract["empty_rows"] is False


def test_the_checkpoint_may_be_an_option(example_folder: Path):
    result = run(
        "onnx",
        "--checkpoint",
        "model.pt",
        "--model",
        "translation:build",
        "-o",
        "option",
        *QUICK,
        "--component",
        "encoder",
    )
    assert result.code == 0, result.err


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"src": np.zeros((3, 2), np.int64)}, "which no graph takes"),
        ({"src": np.zeros((3, 2), np.int32), "src_mask": np.zeros((3, 3), bool)}, "src is int32"),
        ({"src": np.zeros((3, 2), np.int64), "src_mask": np.zeros((3, 4), bool)}, "its dimension source must be 3"),
        ({"src": np.full((3, 2), 120), "src_mask": np.zeros((3, 3), bool)}, "the model has 0 to 119"),
        ({"src": np.zeros((201, 1), np.int64), "src_mask": np.zeros((201, 201), bool)}, "encoder takes 1 to 200"),
    ],
)
def test_a_case_that_does_not_fit_is_refused(
    example_bundle: Path, tmp_path: Path, arrays: dict[str, np.ndarray], words: str
):
    np.savez(tmp_path / "case.npz", **arrays)
    result = run("verify", str(example_bundle), "--model", "translation:build", "--case", str(tmp_path / "case.npz"))
    assert result.code == 2
    assert words in result.err


# --- the original as the reference -----------------------------------------------------------------------------------

HALVES = ("--component", "encoder", "--component", "decoder", "--component", "full")


def test_what_mytx_reads_is_held_against_the_class_that_it_was_trained_in(example_folder: Path):
    command = ["onnx", "model.pt", "--reference", "translation:build", "-o", "read", *HALVES, *QUICK, "--force"]
    result = run(*command, "--nhead", "4", "--json")

    assert result.code == 0, result.err
    rows = [row for row in json.loads(result.out)["graphs"] if row["runtime"] == "reference translation:build"]
    assert {row["graph"] for row in rows} == {"encoder", "full"}  # its decode ends before the logits
    assert all(row["passed"] and row["allowed"] == 0.1 and row["cases"] >= 4 for row in rows)


def held_against_its_class(checkpoint: Path, **reading: Any) -> list[GraphReport]:
    """What is found about the full graph in PyTorch alone, without any file."""
    module = make_module("translation:build")
    load_weights(module, checkpoint, "translation:build")
    subject = as_exportable(load_checkpoint(checkpoint, **{"nhead": 4, **reading}).eval())
    graphs = {"full": subject.graphs["full"]}
    request = Request("quick", originals=originals(module, graphs, "translation:build"))
    report, _ = prove(subject.model, graphs, (), checkpoint.parent, request, timed=lambda _: nullcontext())
    return [row for row in report.graphs if row.runtime == "reference translation:build"]


def test_a_checkpoint_that_is_read_rightly_passes(example_folder: Path):
    (row,) = held_against_its_class(example_folder / "model.pt")
    assert row.passed
    assert row.worst_ratio < 0.001


@pytest.mark.parametrize(
    "wrong",
    [
        {"nhead": 2},
        {"activation": "gelu"},
        {"norm_first": True},
        {"layer_norm_eps": 1.2e-5},
        {"embedding_scale": 8.00001},
    ],
)
def test_a_checkpoint_that_is_read_wrongly_fails(example_folder: Path, wrong: dict[str, Any]):
    (row,) = held_against_its_class(example_folder / "model.pt", **wrong)
    assert not row.passed
    assert {finding.check for finding in row.findings} == {"structure"}


def test_the_command_says_that_it_was_read_wrongly(example_folder: Path):
    command = ["onnx", "model.pt", "--nhead", "2", "--reference", "translation:build", "-o", "wrong", *QUICK]
    result = run(*command, "--component", "full")

    assert result.code == 1
    assert "structure (reference translation:build)" in result.out
    assert "The reference computes something else than what mytx read" in result.out
    assert not (example_folder / "wrong").exists()


def test_a_reference_that_none_of_the_files_is_held_against_is_refused(example_folder: Path):
    command = ["onnx", "model.pt", "--nhead", "4", "--reference", "translation:build", "-o", "never", *QUICK]
    result = run(*command, "--component", "greedy")
    assert result.code == 2
    assert "of greedy the reference can be held against none" in result.err
    assert "--component full" in result.err


def test_formats_whose_masks_may_be_left_out_have_a_reference_too(example_folder: Path):
    command = ["torchscript", "model.pt", "--nhead", "4", "--reference", "translation:build", "-o", "script", *QUICK]
    result = run(*command, "--component", "full", "--json")
    assert result.code == 0, result.err
    (row,) = [row for row in json.loads(result.out)["graphs"] if row["runtime"].startswith("reference")]
    assert row["passed"]
    assert row["cases"] >= 4


def test_a_reference_that_cannot_be_called_is_refused(example_folder: Path):
    strange(example_folder, "import torch\ndef build(): return torch.nn.Linear(2, 2)\n")
    result = run("onnx", "model.pt", "--nhead", "4", "--reference", "strange:build", "-o", "never")
    assert result.code == 2
    assert "model.pt is not of strange:build: it lacks 2 tensors" in result.err
    assert not (example_folder / "never").exists()
