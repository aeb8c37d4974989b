"""Faults planted in a file of torch.export are found, each by the checks that should find it."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mytx.exporter.formats.program import export_program
from mytx.exporter.formats.pt2 import load
from mytx.exporter.formats.torch_files import describe_file
from mytx.exporter.graphs.graph import Graph
from mytx.exporter.graphs.modules import GraphModule
from mytx.exporter.quiet import quiet
from torch_files import TorchFiles, found, messages, repack


def saved(files: TorchFiles, name: str, program: Any, folder: Path) -> Path:
    """A program as the file of a graph."""
    path = folder / files.known.file(name)
    with quiet():
        torch.export.save(program, path, extra_files=describe_file(files.contract(name), "test"))
    return path


def test_a_changed_weight_is_found(honest: TorchFiles, tmp_path: Path) -> None:
    program = load(honest.path("encoder"))
    with torch.no_grad():
        weight = program.state_dict["model.my_transformer.encoder.layers.0.linear1.weight"]
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    reports = honest.verify("encoder", saved(honest, "encoder", program, tmp_path))
    assert found(reports) == {"weights"}
    assert "linear1.weight differs from the model in 1 of" in messages(reports)


def test_a_weight_laid_out_otherwise_is_found(honest: TorchFiles, tmp_path: Path) -> None:
    def turn(content: bytes) -> bytes:
        config = json.loads(content)
        config["config"]["model.my_transformer.encoder.layers.0.self_attn.q_proj.weight"]["tensor_meta"]["strides"] = [
            {"as_int": 1},
            {"as_int": 16},
        ]
        return json.dumps(config).encode()

    changes = {"data/weights/model_weights_config.json": turn}
    reports = honest.verify("encoder", repack(honest.path("encoder"), tmp_path / "encoder.pt2", changes))
    assert found(reports) == {"weights", "rounding", "structure"}


class Constant(GraphModule):
    """One weight is a constant of the graph."""

    def __init__(self, model: Any) -> None:
        super().__init__(copy.deepcopy(model))
        linear = self.model.my_transformer.encoder.layers[0].linear1
        values = linear.bias.detach().clone()
        del linear.bias
        linear.register_buffer("bias", values, persistent=False)

    def forward(self, src: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        return self.model.encode(src, src_key_padding_mask)


class Turned(GraphModule):
    def forward(self, src: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        return self.model.encode(src, ~src_key_padding_mask)


class Ignored(GraphModule):
    def forward(self, src: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        return self.model.encode(src, None)


class Training(GraphModule):
    def forward(self, src: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        return nn.functional.dropout(self.model.encode(src, src_key_padding_mask), 0.1, training=True)


class Almost(GraphModule):
    def forward(self, src: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        return self.model.encode(src, src_key_padding_mask) + 1e-6


class Unread(GraphModule):
    def forward(self, src: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        embedded = self.model.src_token_embedding(src.transpose(0, 1))
        return self.model.my_transformer.encoder(embedded, src_key_padding_mask=src_key_padding_mask).transpose(0, 1)


class Renamed(GraphModule):
    def forward(self, src: Tensor, mask: Tensor) -> Tensor:
        return self.model.encode(src, mask)


class Twice(GraphModule):
    def forward(self, src: Tensor, src_key_padding_mask: Tensor) -> tuple[Tensor, Tensor]:
        memory = self.model.encode(src, src_key_padding_mask)
        return memory, memory * 2


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (Constant, {"weights"}),
        (Turned, {"rounding", "structure"}),
        (Ignored, {"rounding", "structure"}),
        (Training, {"rounding", "structure"}),
        (Unread, {"weights", "rounding", "structure"}),
        (Twice, {"interface", "rounding", "structure"}),
    ],
)
def test_a_graph_that_does_something_else_is_found(
    module: type[GraphModule], expected: set[str], honest: TorchFiles, tmp_path: Path
) -> None:
    graph = honest.proven.graphs["encoder"]
    program = export_program(dataclasses.replace(graph, module=module(honest.proven.model)))
    assert found(honest.verify("encoder", saved(honest, "encoder", program, tmp_path))) == expected


def test_a_renamed_input_is_found(honest: TorchFiles, tmp_path: Path) -> None:
    graph = honest.proven.graphs["encoder"]
    src, padding = graph.contract.inputs
    contract = dataclasses.replace(graph.contract, inputs=(src, dataclasses.replace(padding, name="mask")))
    program = export_program(Graph(contract, Renamed(honest.proven.model), graph.scopes))
    reports = honest.verify("encoder", saved(honest, "encoder", program, tmp_path))
    assert found(reports) >= {"interface", "runtime"}
    assert "input mask is not in the contract" in messages(reports)
    assert "input src_key_padding_mask is missing" in messages(reports)


def test_what_hides_in_the_rounding_is_found_by_structure(honest: TorchFiles, tmp_path: Path) -> None:
    graph = dataclasses.replace(honest.proven.graphs["encoder"], module=Almost(honest.proven.model))
    plain, lifted = honest.verify("encoder", saved(honest, "encoder", export_program(graph), tmp_path))
    assert plain.passed
    assert found([lifted]) == {"structure"}


def exported_with(honest: TorchFiles, shapes: Mapping[str, Any]) -> Any:
    """The encoder's program with other dynamic dimensions."""
    graph = honest.proven.graphs["encoder"]
    src = torch.ones(2, 7, dtype=torch.int64)
    with torch.no_grad():
        kwargs = {"src": src, "src_key_padding_mask": src == 0}
        return torch.export.export(graph.module, (), kwargs=kwargs, dynamic_shapes=shapes)


@pytest.mark.parametrize(
    ("batch", "source", "words"),
    [
        (None, (1, 64), "input src is [2, 'source'], the contract says ['batch', 'source']"),
        ((1, None), None, "input src is ['batch', 7]"),
        ((2, None), (1, 64), "input src is ['batch from 2 to None', 'source']"),
        ((1, None), (1, 63), "input src is ['batch', 'source from 1 to 63']"),
        ((1, 8), (1, 64), "input src is ['batch from 1 to 8', 'source']"),
    ],
)
def test_a_dimension_that_varies_too_little_is_found(
    batch: tuple[int, int | None] | None,
    source: tuple[int, int | None] | None,
    words: str,
    honest: TorchFiles,
    tmp_path: Path,
) -> None:
    dims = {
        index: torch.export.Dim(name, min=limits[0], max=limits[1])
        for index, (name, limits) in enumerate({"batch": batch, "source": source}.items())
        if limits
    }
    program = exported_with(honest, {"src": dims, "src_key_padding_mask": dims})
    reports = honest.verify("encoder", saved(honest, "encoder", program, tmp_path))
    assert "interface" in found(reports)
    assert words in messages(reports)


def test_a_file_without_its_contract_is_found(honest: TorchFiles, tmp_path: Path) -> None:
    path = repack(honest.path("encoder"), tmp_path / "encoder.pt2", {"extra/mytx.json": None})
    reports = honest.verify("encoder", path)
    assert "interface" in found(reports)
    assert "output memory is missing from the file" in messages(reports)
