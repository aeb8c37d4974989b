"""Files exported in parallel processes equal those exported one after the other, and errors are reported."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

from cli_support import names
from exported_models import build
from mytx.exporter import ExportError
from mytx.exporter.bundle import writing as exporting
from mytx.exporter.bundle.writing import export_files
from mytx.exporter.contracts.contract import Axis, Contract, TensorSpec
from mytx.exporter.errors import OptionError
from mytx.exporter.formats.onnx import export as onnx_format
from mytx.exporter.formats.onnx import files as onnx_files
from mytx.exporter.formats.table import ExportOptions
from mytx.exporter.graphs.graph import Graph
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.graphs.modules import GraphModule
from mytx.exporter.quiet import quiet
from mytx.models import Model

OPTIONS = ExportOptions(18, "1.2.3")
GRAPHS = ("encoder", "decoder", "full")
FILES = [f"{name}.onnx" for name in sorted(GRAPHS)]


def write(model: Model, folder: Path, jobs: int, masks: str | None = None, **options: object) -> list[str]:
    """Export the graphs that do not decode, or the ``chosen`` ones, to a new folder; returns what was said."""
    folder.mkdir()
    said: list[str] = []
    graphs = graphs_of(model, masks)
    chosen = options.pop("chosen", GRAPHS)
    with quiet():
        export_files(
            model,
            graphs,
            chosen,  # type: ignore[arg-type]
            ("onnx",),
            folder,
            OPTIONS,
            masks=masks,
            jobs=jobs,
            progress=said.append,
        )
    return said


# --- the same files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "masks"),
    [
        ("couplet", None),
        pytest.param("bare", "tgt_mask:3d,memory_key_padding_mask:float", marks=pytest.mark.slow),
    ],
)
def test_two_jobs_write_the_same_bytes_as_one(kind: str, masks: str | None, tmp_path: Path) -> None:
    model = build(kind)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    write(model, tmp_path / "one", 1, masks)
    said = write(model, tmp_path / "two", 2, masks)
    assert names(tmp_path / "one") == names(tmp_path / "two") == FILES
    for file in FILES:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert said[0] == "Exporting decoder.onnx, encoder.onnx"
    assert said[-1] == "Exporting full.onnx"  # made of the other two, so it comes after them
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.slow
def test_two_jobs_write_the_same_graphs_that_decode(tmp_path: Path) -> None:
    model = build("couplet")
    for jobs in (1, 2):
        said = write(model, tmp_path / f"{jobs}", jobs, chosen=list(graphs_of(model)))
    assert said[0] == "Exporting decoder.onnx, encoder.onnx, step.onnx"
    assert len(names(tmp_path / "1")) == 7
    assert names(tmp_path / "1") == names(tmp_path / "2")
    for file in names(tmp_path / "1"):
        assert (tmp_path / "1" / file).read_bytes() == (tmp_path / "2" / file).read_bytes(), file


def test_one_job_makes_one_file_after_the_other_and_full_out_of_its_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = []
    honest = onnx_format.to_onnx
    monkeypatch.setattr(onnx_files, "to_onnx", lambda graph, opset: traced.append(graph.name) or honest(graph, opset))
    said = write(build("translation"), tmp_path / "one", 1)
    assert said == [f"Exporting {name}.onnx" for name in GRAPHS]
    assert traced == ["encoder", "decoder"]
    assert names(tmp_path / "one") == FILES


def test_full_alone_is_the_full_of_all(tmp_path: Path) -> None:
    model = build("translation")
    write(model, tmp_path / "all", 1)
    write(model, tmp_path / "alone", 1, chosen=["full"])
    assert names(tmp_path / "alone") == ["full.onnx"]
    alone, found = (onnx.load(tmp_path / folder / "full.onnx") for folder in ("alone", "all"))
    assert [(node.name, node.op_type, node.input, node.output) for node in alone.graph.node] == [
        (node.name, node.op_type, node.input, node.output) for node in found.graph.node
    ]
    assert not found.graph.value_info
    for graph in (alone.graph, found.graph):  # a Constant that was not read from a half still knows its name
        graph.ClearField("node")
    assert alone == found


def test_one_file_is_made_here_however_many_jobs_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "ProcessPoolExecutor", lambda *_, **__: pytest.fail("there is nothing to share"))
    assert write(build("translation"), tmp_path / "one", 8, chosen=["encoder"]) == ["Exporting encoder.onnx"]


# --- errors ----------------------------------------------------------------------------------------------------------


class Frozen(GraphModule):
    """Takes the traced batch for the only one."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(2, -1) * 2


def start_broken(saved: str, masks: str | None) -> None:
    """A worker whose graphs cannot be exported."""
    spec = TensorSpec("x", "float32", (Axis("batch", traced=2), Axis("source", traced=7)))
    for name in GRAPHS:
        contract = Contract(name, (spec,), (spec,), "batch first")
        exporting._graphs[name] = Graph(contract, Frozen(nn.Identity()), ())


def test_an_error_in_another_process_arrives_with_its_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_start", start_broken)
    with pytest.raises(ExportError, match=r"could not export the (encoder|decoder) graph") as caught:
        write(build("translation"), tmp_path / "bundle", 2)
    assert "-v" in caught.value.hint
    assert "\n" not in caught.value.message


def test_an_error_here_arrives_as_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_graphs", {})
    start_broken("", None)
    with quiet(), pytest.raises(ExportError, match="could not export the encoder graph") as caught:
        export_files(build("translation"), exporting._graphs, GRAPHS, ("onnx",), tmp_path, OPTIONS)
    assert "-v" in caught.value.hint


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_an_os_error_from_either(tmp_path: Path) -> None:
    model = build("average pooling")
    for jobs in (1, 2):
        with quiet(), pytest.raises(OSError, match="No such file or directory"):
            export_files(model, graphs_of(model), ["encoder", "full"], ("onnx",), tmp_path / "none", OPTIONS, jobs=jobs)
    assert names(tmp_path) == []


def test_an_opset_that_is_not_known_is_an_option_error_from_either(tmp_path: Path) -> None:
    model = build("average pooling")
    for jobs in (1, 2):
        with quiet(), pytest.raises(OptionError, match="opset 3 is not supported") as caught:
            export_files(model, graphs_of(model), ["encoder", "full"], ("onnx",), tmp_path, ExportOptions(3), jobs=jobs)
        assert "18 to 25" in caught.value.hint


def start_dying(saved: str, masks: str | None) -> None:
    """A worker that is killed, as for want of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_dies_is_an_export_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_start", start_dying)
    with pytest.raises(ExportError, match="has died") as caught:
        write(build("translation"), tmp_path / "bundle", 2)
    assert "fewer --jobs" in caught.value.hint
