"""``mytx-export onnx`` when everything works: files, output and exit code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from cli_support import EAGER, GRAPHS, IN_ONNX, Result, Run, names, run_process, save_folder, save_pt, use_exports
from exported_models import Exported
from mytx.exporter.contracts import contract
from mytx.exporter.formats.onnx import files as onnx_files

ROW_KEYS = {"graph", "format", "runtime", "cases", "compared", "max_abs_error", "worst_ratio", "allowed", "passed"}


# --- the real command ------------------------------------------------------------------------------------------------


def test_a_saved_folder_becomes_all_graphs_and_nothing_is_said_but_the_table(folder: Path, tmp_path: Path) -> None:
    result = run_process("onnx", folder, "-o", "bundle", cwd=tmp_path)
    assert result.code == 0
    assert result.err == ""
    lines = result.out.splitlines()
    report = json.loads((tmp_path / "bundle" / "parity.json").read_text())
    assert report["passed"] is True
    files = [f"{graph}.onnx" for graph in contract.GRAPHS]
    runs = {name: [row for row in report["graphs"] if f"{row['graph']}.{row['format']}" == name] for name in files}
    runs["PyTorch model"] = [row for row in report["graphs"] if row["format"] == "eager"]
    assert {name: len(found) for name, found in runs.items()} == {
        **dict.fromkeys(files, 7),
        "full.onnx": 9,
        "PyTorch model": 7,
    }
    in_files = [row for name in files for row in runs[name]]
    assert lines[0].startswith(
        f"Passed: 7 files agree with PyTorch in {sum(row['cases'] for row in in_files):,} comparisons; "
        f"largest error {max(row['max_abs_error'] for row in in_files):.1e}, at most "
    )
    assert lines[0].endswith(f"{share(in_files)} of what is allowed.")
    table = lines[2 : 3 + len(runs)]
    assert lines[1] == lines[3 + len(runs)] == ""
    assert re.split(" {2,}", table[0]) == ["file", "result", "comparisons", "largest error", "of what is allowed"]
    assert [re.split(" {2,}", line) for line in table[1:]] == [
        [
            name,
            "passed",
            f"{sum(row['cases'] for row in found):,}",
            f"{max(row['max_abs_error'] for row in found):.1e}",
            share(found),
        ]
        for name, found in runs.items()
    ]
    assert re.fullmatch(r"Written to bundle in \d+ s", lines[-1])
    assert "\x1b" not in result.out
    notes = [line for line in lines if ", not compared: " in line]  # of ties, for people and for grep in one line
    assert max(len(line) for line in lines[1:] if line not in notes) <= 80
    assert names(tmp_path) == ["bundle"]
    assert set(files) < set(names(tmp_path / "bundle"))
    assert {"config.json", "parity.json", "manifest.json"} < set(names(tmp_path / "bundle"))


def share(rows: list[dict[str, Any]]) -> str:
    """How much of what is allowed the worst run needs, as the command prints it."""
    return f"{max(row['worst_ratio'] / row['allowed'] for row in rows):.0%}".replace("%", " %")


def test_a_pt_file_and_with_v_the_libraries_may_talk_but_not_into_the_json(bare: Path, tmp_path: Path) -> None:
    result = run_process(
        *("onnx", bare, "--nhead", "2", "-o", tmp_path / "bundle", "--component", "encoder", "--json", "-v")
    )
    assert result.code == 0
    assert result.json()["passed"] is True
    verdict = result.err.index("Passed: 1 file agrees with PyTorch in ")
    assert "torch" in result.err[:verdict], "PyTorch has nothing to say any more, so nothing was tested"
    assert "encoder.onnx" in result.err[verdict:]
    runs = [line for line in result.err[verdict:].splitlines() if line.startswith("  onnx")]
    assert len(runs) == 7  # -v shows them all
    assert [line.split()[-1] for line in runs] == ["4"] * 6 + ["0.1"]


# --- what is printed -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_json_is_one_strict_object_on_stdout_and_all_else_is_on_stderr(folder: Path, run: Run, tmp_path: Path) -> None:
    result = run("onnx", folder, "-o", tmp_path / "bundle", "--json")
    assert result.code == 0
    values = result.json()
    assert {"passed", "bundle", "graphs", "assumed", "seconds"} <= set(values)
    assert values["passed"] is True
    assert values["bundle"] == str(tmp_path / "bundle")
    assert values["assumed"] == []
    assert all(seconds >= 0 for seconds in values["seconds"].values())
    assert [(row["graph"], row["format"]) for row in values["graphs"]] == [
        (graph, name)
        for graph in GRAPHS
        for name, count in (("eager", EAGER[graph]), ("onnx", IN_ONNX[graph]))
        for _ in range(count)
    ]
    for row in values["graphs"]:
        assert set(row) >= ROW_KEYS
        exact = row["runtime"].endswith("float64")
        assert row["runtime"].startswith("PyTorch" if row["format"] == "eager" else ("onnxruntime", "onnx.reference"))
        assert row["cases"] >= {"onnxruntime": 24}.get(row["runtime"], 3)
        assert row["compared"] > 400
        assert 0 < row["max_abs_error"] < 1e-4
        assert row["allowed"] == (0.1 if exact else 4)
        assert 0 < row["worst_ratio"] <= row["allowed"]
        assert row["passed"] is True
    assert "Passed: 3 files agree with PyTorch" in result.err
    assert "1 thread" not in result.err  # each run is for -v


@pytest.mark.usefixtures("quick")
def test_quiet_says_nothing_and_with_json_only_that(folder: Path, run: Run, tmp_path: Path) -> None:
    arguments = ["onnx", folder, "--component", "encoder", "-q", "-o"]
    assert run(*arguments, tmp_path / "one") == Result(0, "", "")
    result = run(*arguments, tmp_path / "two", "--json")
    assert result.err == ""
    assert result.json()["passed"] is True


def test_what_was_assumed_is_printed_and_stored(
    couplet: Exported, run: Run, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_pt(couplet, tmp_path / "model.pt")
    result = run("onnx", "model.pt", "--nhead", 2, "--activation", "relu", "-o", "bundle", "--json", "--no-verify")
    assumed = result.json()["assumed"]
    assert {"name": "norm_first", "value": False, "source": "default"} in assumed
    assert {"name": "eos_id", "value": 2, "source": "default"} in assumed
    assert {"name": "activation", "value": "relu", "source": "option"} in assumed
    assert "Assumed" in result.err
    for item in assumed:
        assert f"{item['name']}={item['value']}" in result.err
    assert json.loads((tmp_path / "bundle" / "manifest.json").read_text())["assumed"] == assumed


def test_nothing_is_shown_of_the_progress_where_stderr_is_no_terminal_though_colours_are_wanted(
    folder: Path, run: Run, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = run("onnx", folder, "-o", tmp_path / "bundle", "--component", "encoder")
    assert result.code == 0
    assert result.err == ""


@pytest.mark.usefixtures("quick")
def test_odd_names_are_printed_as_they_are(
    folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("[bold]x[red]", "two  spaces", "модель"):
        result = run("onnx", folder, "-o", name, "--component", "encoder")
        assert result.code == 0
        assert f"\nWritten to {name} in " in result.out
        assert name in names(tmp_path)


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("asked", "made"),
    [
        (["encoder"], ["encoder"]),
        (["decoder"], ["decoder"]),
        (["full"], ["full"]),
        (["decoder", "encoder", "decoder"], ["encoder", "decoder"]),
    ],
)
def test_components_are_what_was_asked_for(
    asked: list[str], made: list[str], folder: Path, run: Run, tmp_path: Path
) -> None:
    options = [word for name in asked for word in ("--component", name)]
    result = run("onnx", folder, "-o", tmp_path / "bundle", "--json", *options)
    assert result.code == 0
    assert list(dict.fromkeys(row["graph"] for row in result.json()["graphs"])) == made
    assert sorted(path.stem for path in (tmp_path / "bundle").glob("*.onnx")) == sorted(made)


@pytest.mark.usefixtures("quick")
def test_without_verification_nothing_has_passed(folder: Path, run: Run, tmp_path: Path) -> None:
    result = run("onnx", folder, "-o", tmp_path / "bundle", "--no-verify", "--json")
    assert result.code == 0
    assert result.json()["passed"] is None
    assert result.json()["graphs"] == []
    assert result.err.startswith("Not verified: the files were not compared with PyTorch (--no-verify).\n")
    assert f"\nWritten to {tmp_path / 'bundle'} in " in result.err
    assert json.loads((tmp_path / "bundle" / "parity.json").read_text())["passed"] is None


@pytest.mark.usefixtures("quick")
def test_underscores_are_dashes(couplet: Exported, run: Run, tmp_path: Path) -> None:
    path = save_pt(couplet, tmp_path / "model.pt")
    result = run("onnx", path, "-o", tmp_path / "a", "--nhead", 2, "--no_verify", "--layer_norm_eps", "1e-5", "--json")
    assert result.code == 0
    assert result.json()["passed"] is None
    assert {"name": "layer_norm_eps", "value": 1e-5, "source": "option"} in result.json()["assumed"]


def test_an_opset_is_the_files(exports: Callable[[str], Exported], run: Run, tmp_path: Path) -> None:
    folder = save_folder(exports("average pooling"), tmp_path / "saved")
    result = run("onnx", folder, "-o", tmp_path / "bundle", "--opset", 23, "--component", "encoder")
    assert result.code == 0
    model = onnx.load(tmp_path / "bundle" / "encoder.onnx")
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 23)]


@pytest.mark.parametrize("opset", range(18, 26))
def test_each_supported_opset_reaches_the_export(
    opset: int, folder: Path, couplet: Exported, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    encoder = couplet.raw("encoder")

    def to_onnx(graph: object, opset: int) -> object:
        seen.append(opset)
        return encoder.clone()

    monkeypatch.setattr(onnx_files, "to_onnx", to_onnx)
    arguments = ["onnx", folder, "-o", tmp_path / "bundle", "--component", "encoder", "--no-verify", "-q"]
    assert run(*arguments, "--opset", opset).code == 0
    assert seen == [opset]


def test_masks_of_a_bare_model_are_the_inputs_that_were_asked_for(bare: Path, run: Run, tmp_path: Path) -> None:
    masks = "src_key_padding_mask:float,src_mask:3d,tgt_mask:bool"
    result = run(
        *("onnx", bare, "--nhead", 2, "-o", tmp_path / "bundle", "--component", "encoder", "--masks", masks, "--json")
    )
    assert result.code == 0
    assert result.json()["passed"] is True
    inputs = onnx.load(tmp_path / "bundle" / "encoder.onnx").graph.input
    found = {
        value.name: (
            value.type.tensor_type.elem_type,
            [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim],
        )
        for value in inputs
    }
    assert found == {
        "src": (onnx.TensorProto.FLOAT, ["source", "batch", 16]),
        "src_mask": (onnx.TensorProto.FLOAT, ["2*batch", "source", "source"]),
        "src_key_padding_mask": (onnx.TensorProto.FLOAT, ["batch", "source"]),
    }


def test_a_model_of_an_encoder_alone_gives_what_it_has(
    exports: Callable[[str], Exported], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = exports("average pooling")
    use_exports(monkeypatch, exported)
    folder = save_folder(exported, tmp_path / "saved")
    result = run("onnx", folder, "-o", tmp_path / "bundle", "--json")
    assert result.code == 0
    rows = [(row["graph"], row["format"]) for row in result.json()["graphs"]]
    assert rows == [(graph, name) for graph in ("encoder", "full") for name in ("eager", *["onnx"] * 7)]
    assert sorted(path.name for path in (tmp_path / "bundle").glob("*.onnx")) == ["encoder.onnx", "full.onnx"]


@pytest.mark.usefixtures("quick")
def test_a_vocabulary_travels_with_the_bundle(folder: Path, couplet: Exported, run: Run, tmp_path: Path) -> None:
    vocab = tmp_path / "mine.json"
    vocab.write_text(json.dumps({"<pad>": 0, "<s>": 1, "</s>": 2, "a": 3}))
    options = ["--component", "encoder", "--no-verify", "-q"]
    assert run("onnx", folder, "-o", tmp_path / "given", "--vocab", vocab, *options).code == 0
    assert json.loads((tmp_path / "given" / "vocab.json").read_text())
    beside = save_folder(couplet, tmp_path / "beside")
    (beside / "vocab.json").write_text(vocab.read_text())
    assert run("onnx", beside, "-o", tmp_path / "found", *options).code == 0
    assert (tmp_path / "found" / "vocab.json").read_text() == (tmp_path / "given" / "vocab.json").read_text()
    assert run("onnx", folder, "-o", tmp_path / "none", *options).code == 0
    assert "vocab.json" not in names(tmp_path / "none")


@pytest.mark.usefixtures("quick")
def test_force_replaces_a_bundle_and_a_new_parent_is_made(folder: Path, run: Run, tmp_path: Path) -> None:
    target = tmp_path / "new" / "parent" / "bundle"
    assert run("onnx", folder, "-o", target, "--no-verify", "-q").code == 0
    before = (target / "manifest.json").read_bytes()
    assert run("onnx", folder, "-o", target, "--component", "encoder", "--force", "-q").code == 0
    assert (target / "manifest.json").read_bytes() != before
    assert "full.onnx" not in names(target)
    assert names(target.parent) == ["bundle"]
