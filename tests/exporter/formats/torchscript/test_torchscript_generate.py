"""The TorchScript file of a search passes with and without optional numbers, and faults in it are found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from exported_models import build
from mytx.exporter.cases.case import Case
from mytx.exporter.cases.search_plan import make_search_plan
from mytx.exporter.contracts.contract import Contract
from mytx.exporter.formats.table import FORMATS, ExportOptions
from mytx.exporter.formats.torchscript import load
from mytx.exporter.graphs.graph import Graph
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.parity.prove import contract_of_file, weights_of_file
from mytx.exporter.parity.report import GraphReport
from mytx.exporter.parity.search_reference import search_references
from mytx.exporter.parity.verify import verify_file
from mytx.exporter.parity.weights import find_weights
from mytx.exporter.quiet import quiet
from mytx.exporter.runtimes.run import runs_of
from mytx.exporter.runtimes.torchscript import TorchScript
from mytx.models import Generator
from torch_files import found, messages, repack

KNOWN = FORMATS["torchscript"]
FUSED = "decoder.layers.0.self_attn.in_proj_weight"


class Search:
    """A model that decodes, its file, and what the file should give."""

    def __init__(self, folder: Path) -> None:
        self.model = build("lively")
        self.graph: Graph = graphs_of(self.model)["generate"]
        self.contract: Contract = contract_of_file(KNOWN, self.graph)
        self.plan: list[Case] = make_search_plan(self.graph.contract, level="quick")
        self.expected = search_references(self.model, self.graph, self.plan)
        with quiet():
            KNOWN.load_exporter().export({"generate": self.graph}, "generate", folder, ExportOptions(producer="test"))
        self.path = folder / KNOWN.file("generate")

    def verify(self, path: Path | None = None) -> list[GraphReport]:
        path = path or self.path
        weights = weights_of_file(KNOWN, self.graph)
        missing = find_weights(KNOWN.name, path, weights)
        runs = runs_of(KNOWN, self.contract, ["generate"], path.parent)
        return verify_file(
            path, self.contract, self.plan, self.expected, runs, format_name="torchscript", found=missing
        )


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Search:
    return Search(tmp_path_factory.mktemp("generate"))


def test_it_passes_in_every_way_to_run_it(search: Search) -> None:
    reports = search.verify()
    for report in reports:
        assert report.passed, (report.runtime, report.findings[:3])
        assert report.compared > 50
    assert any("float64" in report.runtime for report in reports)


def test_numbers_that_are_out_of_range_are_not_asked_of_it(search: Search) -> None:
    outside = [case for case in search.plan if case.group == "range"]
    assert outside
    assert search.verify()[0].cases == len(search.plan) - len(outside)


def test_it_needs_nothing_but_ids_and_has_the_defaults_of_the_search_in_pytorch(search: Search) -> None:
    script = load(search.path)
    src = torch.tensor([[3, 4, 5], [6, 7, 8]])
    for given in ({}, {"num_beams": 3, "num_hypotheses": 2}, {"length_penalty": 0.0, "num_beams": 2}):
        with torch.inference_mode():
            result = script(src, **given)
            expected = Generator(search.model)(src, **given)  # type: ignore[arg-type]
        for one, other in zip(result, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_the_file_says_what_it_takes(search: Search) -> None:
    runtime = TorchScript.open(search.path)
    assert runtime.contract == search.contract
    assert list(runtime.describe().inputs) == [spec.name for spec in search.contract.inputs]
    assert list(runtime.describe().outputs) == ["tokens", "lengths", "scores"]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"num_beams": 0}, "num_beams is 0, choose 1 to 6"),
        ({"num_beams": 2, "num_hypotheses": 3}, "num_hypotheses is 3, choose 1 to 2"),
        ({"max_length": 65}, "max_length is 65, choose 1 to 64"),
        ({"max_length": 4, "min_length": 5}, "min_length is 5, choose 0 to 4"),
        ({"length_penalty": -1.0}, "length_penalty is -1"),
    ],
)
def test_numbers_out_of_range_are_refused_in_words(numbers: dict[str, float], words: str, search: Search) -> None:
    src = torch.tensor([[3, 4]])
    with pytest.raises(torch.jit.Error, match=words):
        load(search.path)(src, **numbers)
    dtypes = {"length_penalty": np.float32}
    given = {name: np.array(value, dtypes.get(name, np.int64)) for name, value in numbers.items()}
    with pytest.raises(RuntimeError, match=words):
        TorchScript.open(search.path).run({"src": src.numpy(), **given})


# --- what is wrong with it is found ----------------------------------------------------------------------------------


def changed(search: Search, folder: Path, name: str, by: float) -> Path:
    """The file with a weight changed, as somebody would who loads, edits and saves it."""
    script = load(search.path)
    with torch.no_grad():
        weight = dict(script.named_parameters()) | dict(script.named_buffers())
        target = next(tensor for key, tensor in weight.items() if key.endswith(name))
        target.view(-1)[5] += by
    path = folder / search.path.name
    extra = {"mytx.json": ""}
    torch.jit.load(str(search.path), _extra_files=extra)  # type: ignore[no-untyped-call]
    torch.jit.save(script, str(path), _extra_files=extra)
    return path


def test_a_fused_weight_that_is_changed_is_found(search: Search, tmp_path: Path) -> None:
    reports = search.verify(changed(search, tmp_path, FUSED, 0.5))
    assert {"weights", "rounding", "structure"} <= found(reports)
    assert "self_attn.in_proj_weight differs from the model in 1 of 768 values" in messages(reports)


def test_one_that_is_changed_by_less_than_rounding_shows_is_found_too(search: Search, tmp_path: Path) -> None:
    reports = search.verify(changed(search, tmp_path, FUSED, 1e-6))
    assert "weights" in found(reports)


def test_a_file_that_is_damaged_is_found(search: Search, tmp_path: Path) -> None:
    path = repack(search.path, tmp_path / search.path.name, {"data.pkl": b"nothing"})
    assert found(search.verify(path)) >= {"runtime"}
