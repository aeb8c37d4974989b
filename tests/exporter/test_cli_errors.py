"""``mytx-export onnx`` where something is wrong: the exit code, one or two lines, and nothing half-written."""

from __future__ import annotations

import collections
import errno
import json
import os
import re
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from cli_support import (
    COMMAND,
    EAGER,
    GRAPHS,
    HALVES,
    IN_ONNX,
    Result,
    assert_refused,
    contents,
    names,
    run_here,
    run_process,
    save_folder,
    save_pt,
)
from exported_models import Exported

from mytx.exporter import pipeline
from mytx.exporter.bundle import inspection as inspecting
from mytx.exporter.bundle import staging as bundle
from mytx.exporter.contracts.contract import Contract
from mytx.exporter.formats.onnx import export as onnx_format
from mytx.exporter.formats.onnx import files as onnx_files
from mytx.exporter.parity import prove as proving

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def checkpoint(couplet: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_pt(couplet, tmp_path_factory.mktemp("couplet") / "model.pt")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder for the output, where nothing may be left."""
    place = tmp_path / "place"
    place.mkdir()
    yield place
    assert names(place) == []


# --- 1: parity failed ------------------------------------------------------------------------------------------------


def move_a_weight(model: ir.Model) -> None:
    """One value of one weight moves to its neighbour: outputs do not show it."""
    value = model.graph.initializers["my_transformer.decoder.layers.0.linear1.bias"]
    assert value.const_value is not None
    weight = value.const_value.numpy().copy()
    weight[0] = np.nextafter(weight[0], np.float32(9))
    value.const_value = ir.tensor(weight, name=value.name)


def change_the_epsilon(model: ir.Model) -> None:
    norm = next(node for node in model.graph if node.op_type == "LayerNormalization")
    norm.attributes["epsilon"] = ir.AttrFloat32("epsilon", 1e-2)


def turn_the_softmax(model: ir.Model) -> None:
    """The weights of the attention sum to 1 over the wrong axis."""
    for node in model.graph:
        if node.op_type == "Softmax":
            node.attributes["axis"] = ir.AttrInt64("axis", -2)


FAULTS = [move_a_weight, change_the_epsilon, turn_the_softmax]


@contextmanager
def planted(fault: Callable[[ir.Model], None], graph: str = "decoder") -> Iterator[None]:
    """The file of ``graph`` comes out wrong."""
    finish = onnx_format.finish

    def faulty(model: ir.Model, contract: Contract, properties: dict[str, str]) -> None:
        if contract.graph == graph:
            fault(model)
        finish(model, contract, properties)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_format, "finish", faulty)
        yield


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bundle_that_is_not_equal_goes_to_failed_and_the_exit_code_is_1(
    fault: Callable[[ir.Model], None], folder: Path, run: Run, tmp_path: Path
) -> None:
    with planted(fault):
        result = run("onnx", folder, "-o", tmp_path / "bundle")
    assert result.code == 1
    assert result.err == ""
    assert names(tmp_path) == ["bundle.failed"]
    assert {f"{graph}.onnx" for graph in GRAPHS} < set(names(tmp_path / "bundle.failed"))
    parity = json.loads((tmp_path / "bundle.failed" / "parity.json").read_text())
    assert parity["passed"] is False
    for graph in GRAPHS:
        verdicts = [row["passed"] for row in parity["graphs"] if (row["graph"], row["format"]) == (graph, "eager")]
        assert verdicts == [True] * EAGER[graph]
        verdicts = [row["passed"] for row in parity["graphs"] if (row["graph"], row["format"]) == (graph, "onnx")]
        assert verdicts[:7] == [graph != "decoder"] * 7
        assert len(verdicts) == IN_ONNX[graph]
    (halves,) = [row["passed"] for row in parity["graphs"] if row["runtime"] == HALVES]
    assert halves is (fault is move_a_weight)  # there the decoder is the faulty file, whose outputs are all the same
    lines = result.out.splitlines()
    results = {line.split()[0]: line.split()[1] for line in lines[3 : 3 + len(GRAPHS)]}
    shown = [name for name, verdict in results.items() if verdict == "FAILED"]
    assert shown == ["decoder.onnx", *([] if fault is move_a_weight else ["full.onnx"])]
    assert results == {f"{graph}.onnx": "passed" for graph in GRAPHS} | dict.fromkeys(shown, "FAILED")
    assert lines[3 + len(GRAPHS)].split()[:3] == ["PyTorch", "model", "passed"]
    differ = "files differs from PyTorch" if len(shown) == 1 else "files differ from PyTorch"
    assert lines[0] == f"FAILED: {len(shown)} of {len(GRAPHS)} {differ}: {', '.join(shown)}."
    (written,) = [line for line in lines if line.startswith("Written to ")]
    assert re.search(r"bundle\.failed in \d+ s; do not deploy it$", written)
    offered = [line for line in lines if "mytx-export locate" in line]
    assert offered == ([] if fault is move_a_weight else lines[-1:])  # a weight that differs needs no search


@pytest.mark.usefixtures("quick")
def test_a_bundle_that_is_there_stays_byte_for_byte_when_the_new_one_fails(
    folder: Path, run: Run, tmp_path: Path
) -> None:
    arguments = ["onnx", folder, "-o", tmp_path / "bundle", "-q", "--component", "decoder"]
    assert run(*arguments).code == 0
    before = contents(tmp_path / "bundle")
    with planted(change_the_epsilon):
        assert run(*arguments, "--force").code == 1
        assert run(*arguments, "--force").code == 1
    assert names(tmp_path) == ["bundle", "bundle.failed"]
    assert contents(tmp_path / "bundle") == before
    assert run(*arguments, "--force").code == 0
    assert names(tmp_path) == ["bundle"]


@pytest.mark.usefixtures("quick")
def test_the_json_of_a_failure_says_what_was_found(folder: Path, run: Run, tmp_path: Path) -> None:
    with planted(move_a_weight, "full"):
        result = run("onnx", folder, "-o", tmp_path / "bundle", "--json")
    assert result.code == 1
    values = result.json()
    assert values["passed"] is False
    assert values["bundle"] == str(tmp_path / "bundle.failed")
    for row in values["graphs"]:
        assert row["passed"] is ((row["graph"], row["format"]) != ("full", "onnx"))
        assert [finding["check"] for finding in row["findings"]] == ([] if row["passed"] else ["weights"])
    assert "my_transformer.decoder.layers.0.linear1.bias" in values["graphs"][-1]["findings"][0]["message"]
    assert result.err.startswith("FAILED: 1 of 3 files differs from PyTorch: full.onnx.\n")


@pytest.mark.usefixtures("quick")
def test_numbers_that_are_not_finite_are_null_in_the_json(
    folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> object:
        raise RuntimeError("planted")

    monkeypatch.setattr("mytx.exporter.runtimes.onnxruntime.OnnxRuntime.run", fail)
    result = run("onnx", folder, "-o", tmp_path / "bundle", "--json", "--component", "encoder")
    assert result.code == 1
    rows = [row for row in result.json()["graphs"] if row["runtime"].startswith("onnxruntime")]
    assert len(rows) == 5
    for row in rows:
        assert row["max_abs_error"] is None
        assert "planted" in row["findings"][0]["message"]


@pytest.mark.usefixtures("quick")
def test_without_verification_a_fault_is_not_seen(folder: Path, run: Run, tmp_path: Path) -> None:
    with planted(change_the_epsilon):
        assert run("onnx", folder, "-o", tmp_path / "bundle", "-q", "--no-verify").code == 0


# --- 2: the checkpoint -----------------------------------------------------------------------------------------------


def test_no_such_file(run: Run, place: Path) -> None:
    assert_refused(run("onnx", "absent.pt", "-o", place / "x"), "absent.pt: no such file", "hint: ")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"hello, this is text", "not a PyTorch checkpoint"),
        (b"\x80\x04\x95" + b"\xff" * 100, "hint: "),
        (b"PK\x03\x04" + b"\x00" * 500, "truncated or damaged"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "Git LFS pointer"),
    ],
)
@pytest.mark.parametrize("suffix", ["pt", "pkl"])
def test_what_is_no_checkpoint(content: bytes, words: str, suffix: str, run: Run, place: Path, tmp_path: Path) -> None:
    path = tmp_path / f"model.{suffix}"
    path.write_bytes(content)
    assert_refused(run("onnx", path, "--nhead", 2, "-o", place / "x"), str(path), words)


@pytest.mark.parametrize("keep", [10, 1000, -100])
def test_a_truncated_checkpoint(keep: int, checkpoint: Path, run: Run, place: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(checkpoint.read_bytes()[:keep])
    assert_refused(run("onnx", path, "--nhead", 2, "-o", place / "x"), str(path))


def test_a_folder_that_is_no_saved_model(run: Run, place: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert_refused(run("onnx", tmp_path / "empty", "-o", place / "x"), "config.json", "save_model")


class Planted:
    """Runs a command where it is unpickled without care."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.marker}'",)


def test_a_pickle_that_wants_to_run_code_is_refused_and_does_not_run(run: Run, place: Path, tmp_path: Path) -> None:
    torch.save({"model": {"weight": torch.ones(2)}, "extra": Planted(tmp_path / "ran")}, tmp_path / "model.pt")
    assert_refused(run("onnx", tmp_path / "model.pt", "--nhead", 2, "-o", place / "x"), "refused", "system")
    assert not (tmp_path / "ran").exists()


def test_a_head_count_that_is_missing_or_does_not_divide(checkpoint: Path, run: Run, place: Path) -> None:
    assert_refused(run("onnx", checkpoint, "-o", place / "x"), "heads", "--nhead")
    assert_refused(run("onnx", checkpoint, "--nhead", 3, "-o", place / "x"), "3", "16", "--nhead")


NORM = "my_transformer.encoder.layers.0.norm1.bias"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.pop(NORM), ["lacks 1 tensor", NORM]),
        (lambda state: state.update(strange=torch.ones(3)), ["unexpected tensor", "strange", "--key ignore=strange"]),
        (lambda state: state.update({NORM: torch.ones(8)}), [NORM, "[8]", "[16]"]),
        (lambda state: state.update({NORM: torch.full((16,), float("nan"))}), [NORM, "NaN"]),
    ],
)
def test_tensors_that_are_missing_unexpected_or_wrong(
    change: Callable[[dict[str, Any]], Any], words: list[str], couplet: Exported, run: Run, place: Path, tmp_path: Path
) -> None:
    state = collections.OrderedDict(couplet.model.state_dict())
    change(state)
    torch.save(state, tmp_path / "model.pt")
    assert_refused(run("onnx", tmp_path / "model.pt", "--nhead", 2, "-o", place / "x"), *words)


@pytest.mark.parametrize("key", ["nonsense", "a=b", "ignore=absent", "=x", "source_embedding=", "ignore="])
def test_a_key_that_says_nothing_sensible(key: str, checkpoint: Path, run: Run, place: Path) -> None:
    assert_refused(run("onnx", checkpoint, "--nhead", 2, "--key", key, "-o", place / "x"), "--key")


# --- 2: options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model.pt"], ["--output"]),
        (["-o"], ["'-o'"]),
        (["one.pt", "two.pt", "-o", "x"], ["two.pt"]),
        (["--bogus", "-o", "x"], ["--bogus"]),
        (["--opset", "abc", "-o", "x"], ["--opset", "'abc'"]),
        (["--component", "steps", "-o", "x"], ["'steps'", "'encoder'", "'step'", "'generate'"]),
        (["--activation", "tanh", "-o", "x"], ["'tanh'", "'relu'"]),
        (["--pooling", "max", "-o", "x"], ["'max'", "'upstream-sum'"]),
        (["--nhead", "0", "-o", "x"], ["--nhead", "0"]),
        (["--nhead", "two", "-o", "x"], ["--nhead", "'two'"]),
        (["--pad-id", "-1", "-o", "x"], ["--pad-id", "-1"]),
        (["--layer-norm-eps", "small", "-o", "x"], ["--layer-norm-eps", "'small'"]),
        (["--vocab", "absent.json", "-o", "x"], ["--vocab", "absent.json"]),
        (["-v", "-q", "-o", "x"], ["--verbose", "--quiet"]),
    ],
)
def test_options_that_do_not_exist_or_do_not_fit(arguments: list[str], words: list[str], place: Path) -> None:
    result = run_process("onnx", *arguments, cwd=place)
    assert_refused(result, *words, "hint: see mytx-export ", "--help")


def test_a_command_that_does_not_exist(place: Path) -> None:
    assert_refused(run_process("onxx", cwd=place), "'onxx'", "hint: see mytx-export --help")


def test_no_command_at_all_shows_the_help_and_is_an_error() -> None:
    result = run_process()
    assert result.code == 2
    assert "Usage: mytx-export" in result.err


@pytest.mark.parametrize("opset", [17, 26, 0, -1])
def test_opsets_that_are_not_supported(opset: int, folder: Path, run: Run, place: Path) -> None:
    assert_refused(run("onnx", folder, "--opset", opset, "-o", place / "x"), f"opset {opset}", "18 to 25")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--layer-norm-eps", "nan"),
        ("--layer-norm-eps", "-1"),
        ("--embedding-scale", "inf"),
        ("--pad-id", "99999"),
        ("--eos-id", "99999"),
    ],
)
def test_values_that_no_model_has(option: str, value: str, checkpoint: Path, run: Run, place: Path) -> None:
    assert_refused(run("onnx", checkpoint, "--nhead", 2, option, value, "-o", place / "x"), option)


@pytest.mark.parametrize("vocab", ["", "not json", "[]", "3", '{"a": "b"}', '{"a": 0, "b": 0}'])
def test_a_vocabulary_that_is_none(vocab: str, folder: Path, run: Run, place: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(vocab)
    assert_refused(run("onnx", folder, "--vocab", tmp_path / "mine.json", "-o", place / "x"), "mine.json")


def test_an_option_that_contradicts_a_saved_model(folder: Path, run: Run, place: Path) -> None:
    assert_refused(run("onnx", folder, "--nhead", 4, "-o", place / "x"), "config.json says nhead=2", "--nhead")


def test_masks_on_a_model_on_ids(folder: Path, run: Run, place: Path) -> None:
    assert_refused(run("onnx", folder, "--masks", "tgt_mask", "-o", place / "x"), "--masks", "leave it out")


@pytest.mark.parametrize(
    ("masks", "words"),
    [
        ("causal_mask", ["'causal_mask'", "tgt_mask"]),
        ("tgt_mask:4d", ["tgt_mask", "'4d'", "3d"]),
        ("src_key_padding_mask:3d", ["src_key_padding_mask", "'3d'", "bool, float"]),
        ("tgt_mask,tgt_mask:bool", ["tgt_mask", "twice"]),
        ("tgt_mask,:bool", ["''"]),
    ],
)
def test_masks_that_do_not_exist_or_cannot_be(masks: str, words: list[str], bare: Path, run: Run, place: Path) -> None:
    assert_refused(run("onnx", bare, "--nhead", 2, "--masks", masks, "-o", place / "x"), "--masks", *words)


def test_a_component_that_the_model_lacks(
    exports: Callable[[str], Exported], run: Run, place: Path, tmp_path: Path
) -> None:
    saved = save_folder(exports("average pooling"), tmp_path / "saved")
    result = run("onnx", saved, "--component", "encoder", "--component", "decoder", "-o", place / "x")
    assert_refused(result, "no decoder", "encoder, full")


# --- 2: the output ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_a_bundle_is_not_replaced_without_force(folder: Path, run: Run, tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    assert run("onnx", folder, "-o", target, "--no-verify", "-q").code == 0
    before = contents(tmp_path)
    assert_refused(run_process("onnx", folder, "-o", target), str(target), "exists", "--force")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("options", [[], ["--force"]])
@pytest.mark.parametrize("manifest", [None, '{"name": "a web page"}'])
def test_a_folder_that_is_no_bundle_is_never_replaced(
    options: list[str], manifest: str | None, folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "thesis"
    target.mkdir()
    (target / "chapter.tex").write_text("mine")
    if manifest:
        (target / "manifest.json").write_text(manifest)
    before = contents(tmp_path)
    assert_refused(run_process("onnx", folder, "-o", target, *options), str(target), "not a bundle", "--output")
    assert contents(tmp_path) == before


def test_a_file_that_lies_in_the_old_bundle_is_not_lost(
    folder: Path, checkpoint: Path, run: Run, quick: None, tmp_path: Path
) -> None:
    target = tmp_path / "bundle"
    assert run("onnx", folder, "-o", target, "--no-verify", "-q").code == 0
    inside = target / "model.pt"
    inside.write_bytes(checkpoint.read_bytes())
    assert_refused(run("onnx", inside, "--nhead", 2, "-o", target, "--force"), "model.pt", "move it")
    assert inside.read_bytes() == checkpoint.read_bytes()


@pytest.mark.parametrize("output", ["file", "file/x", "file/x/y", "/dev/null/x", "/proc/x", "/proc/x/y", "/", "."])
def test_places_where_no_folder_can_be(output: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for options in ([], ["--force"]):
        assert_refused(run_process("onnx", folder, "-o", output, *options, cwd=tmp_path), "hint: ")
    assert contents(tmp_path) == {"file": b"mine"}


def test_a_name_that_is_too_long(folder: Path, place: Path) -> None:
    assert_refused(run_process("onnx", folder, "-o", place / ("x" * 300)), "File name too long", "hint: ")


# --- 2: a full disk --------------------------------------------------------------------------------------------------


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file can grow larger. The system answers "file too large", which is handled like "no space left"."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_on_a_full_disk_nothing_is_left_and_the_old_bundle_stays_whichever_file_does_not_fit(
    folder: Path, run: Run, quick: None, tmp_path: Path
) -> None:
    target = tmp_path / "bundle"
    arguments = ["onnx", folder, "-o", target, "--component", "encoder"]
    assert run(*arguments).code == 0
    before = contents(tmp_path)
    sizes = {path.stat().st_size for path in target.iterdir()}
    for size in sorted({size - 1 for size in sizes} | {size // 2 for size in sizes}):
        if size < 300:
            continue  # the message must fit: it is in a file, too, in this test
        with files_of_at_most(size):
            result = run(*arguments, "--force")
        assert_refused(result, "File too large", "free some space")
        assert contents(tmp_path) == before


def test_on_a_full_disk_the_real_command_says_so_too(
    exports: Callable[[str], Exported], place: Path, tmp_path: Path
) -> None:
    saved = save_folder(exports("average pooling"), tmp_path / "saved")

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    result = run_process("onnx", saved, "-o", place / "new" / "bundle", "--component", "encoder", preexec_fn=limit)
    assert_refused(result, "File too large", "free some space")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_errors_of_the_disk_at_any_step(
    number: int, folder: Path, run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number), "/some/file")

    for module, name in (
        (onnx_format, "save"),
        (pipeline, "write_json"),
        (pipeline, "write_stored"),
        (pipeline, "describe_files"),
        (bundle.Staging, "commit"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            result = run("onnx", folder, "-o", place / "x", "--component", "encoder")
        assert_refused(result, os.strerror(number), "/some/file", "hint: ")
        assert names(place) == []


# --- 2: an export that fails -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verbose", [False, True])
def test_an_export_that_fails_names_the_graph_and_the_reason(
    verbose: bool, folder: Path, run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("\n\nplanted reason\nand a long story")

    monkeypatch.setattr(torch.export, "export", fail)
    result = run("onnx", folder, "-o", place / "x", *(["-v"] if verbose else []))
    assert result.code == 2
    assert result.out == ""
    lines = result.err.splitlines()
    assert lines[-2:] == [
        "error: PyTorch could not export the encoder graph: planted reason",
        "hint: run again with -v for the whole story",
    ]
    if verbose:
        assert "and a long story" in result.err
        assert "Traceback" in result.err
    else:
        assert len(lines) == 2


@pytest.mark.usefixtures("quick")
def test_an_invalid_file_names_the_graph(folder: Path, run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plant(model: ir.Model) -> None:
        next(iter(model.graph)).op_type = "NoSuchOperator"

    with planted(plant, "encoder"):
        assert_refused(run("onnx", folder, "-o", place / "x"), "encoder.onnx", "NoSuchOperator", "--opset")


# --- 3: a bug in mytx ------------------------------------------------------------------------------------------------


def fail_strangely(*arguments: object, **options: object) -> None:
    raise RuntimeError("planted\nin two lines")


@pytest.mark.usefixtures("quick")
def test_a_bug_is_a_short_message_and_a_log(
    folder: Path, run: Run, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "logs"))
    monkeypatch.setattr(pipeline, "prove", fail_strangely)
    result = run("onnx", folder, "-o", place / "x")
    [log] = (tmp_path / "logs").iterdir()
    assert_refused(result, "a bug in mytx", "RuntimeError: planted in two lines", "report", str(log), code=3)
    assert "Traceback" in log.read_text()
    assert "in two lines" in log.read_text()


@pytest.mark.usefixtures("quick")
def test_a_bug_where_no_log_can_be_written_is_still_3(
    folder: Path, run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", full)
    monkeypatch.setattr(pipeline, "prove", fail_strangely)
    assert_refused(run("onnx", folder, "-o", place / "x"), "a bug in mytx", "report", code=3)


# --- 130: Ctrl-C -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("module", "name"),
    [
        (onnx_files, "export"),
        (onnx_format, "finish"),
        (onnx_format, "save"),
        (proving, "every_case"),
        (proving, "verify_file"),
        (proving, "find_weights"),
        (pipeline, "write_stored"),
        (pipeline, "write_json"),
        (pipeline, "describe_files"),
    ],
)
def test_ctrl_c_at_any_step_leaves_nothing_and_the_old_bundle_whole(
    module: Any, name: str, folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*arguments: object, **options: object) -> None:
        signal.raise_signal(signal.SIGINT)

    target = tmp_path / "bundle"
    target.mkdir()
    (target / "manifest.json").write_text('{"format": 1, "files": [], "graphs": {}, "parity": {}}')
    before = contents(tmp_path)
    monkeypatch.setattr(module, name, press)
    result = run("onnx", folder, "-o", target, "--force")
    assert result.code == 130
    assert result.err.strip() == "error: interrupted; no unfinished bundle is left behind"
    assert contents(tmp_path) == before


@pytest.mark.parametrize("pause", [None, 0.02])
def test_ctrl_c_in_the_real_command(pause: float | None, bare: Path, place: Path) -> None:
    arguments = [COMMAND, "onnx", str(bare), "--nhead", "2", "-o", str(place / "new" / "bundle")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        seen = 0
        while seen < 20:  # so the export goes on, and this is not the trial whether there can be a folder
            seen = seen + 1 if list(place.glob("new/.bundle.mytx-new-*")) else 0
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        if pause is not None:  # an impatient person presses twice
            time.sleep(pause)
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    assert err.strip() == "error: interrupted; no unfinished bundle is left behind"


def test_an_interrupt_that_python_wrapped_in_another_error_is_still_an_interrupt(
    bare: Path, place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise RuntimeError("Error calling __set_name__") from error

    monkeypatch.setattr("mytx.exporter.formats.onnx.files.to_onnx", interrupted)
    result = run_here(capfd, "onnx", bare, "--nhead", 2, "-o", place / "bundle")
    assert result.code == 130
    assert result.err.strip() == "error: interrupted; no unfinished bundle is left behind"
    assert not list(place.iterdir())


def test_code_that_ends_the_program_is_not_taken_for_a_pass(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., Result]
) -> None:
    def end(*_: Any, **__: Any) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(inspecting, "inspect_path", end)
    result = run("inspect", ".")
    assert result.code == 3
    assert "SystemExit" in result.err
