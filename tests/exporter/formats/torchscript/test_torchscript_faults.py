"""Faults planted in a TorchScript file are found, each by the checks that should find it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from exported_models import shaken, translation
from mytx.exporter.formats.torch_files import describe_file
from mytx.exporter.formats.torchscript import load
from mytx.exporter.graphs.modules import GraphModule
from mytx.exporter.quiet import quiet
from torch_files import Proven, TorchFiles, assert_passed, found, messages, repack


def saved(files: TorchFiles, name: str, module: object, folder: Path) -> Path:
    """A scripted module as the file of a graph."""
    path = folder / files.known.file(name)
    with quiet():
        torch.jit.save(module, str(path), _extra_files=describe_file(files.contract(name), "test"))
    return path


def scripted(module: torch.nn.Module, kept: list[str] | None = None) -> torch.jit.ScriptModule:
    """A module scripted; frozen, but for the weights called ``kept``, where there are some."""
    with quiet():
        made = torch.jit.script(module).eval()
        if kept is None:
            return made
        kept = ["model." + name for name in kept]
        return torch.jit.freeze(made, preserved_attrs=kept, optimize_numerics=False)


def test_a_changed_weight_is_found(honest: TorchFiles, tmp_path: Path) -> None:
    module = load(honest.path("encoder"))
    with torch.no_grad():
        weight = dict(module.named_parameters())["model.my_transformer.encoder.layers.0.linear1.weight"]
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    reports = honest.verify("encoder", saved(honest, "encoder", module, tmp_path))
    assert found(reports) == {"weights"}
    assert "linear1.weight differs from the model in 1 of" in messages(reports)


def test_a_weight_changed_in_the_archive_is_found(honest: TorchFiles, tmp_path: Path) -> None:
    def change(content: bytes) -> bytes:
        return content[:-4] + np.float32(0.5).tobytes()

    path = repack(honest.path("encoder"), tmp_path / "encoder.ts.pt", {"data/3": change})
    assert found(honest.verify("encoder", path)) >= {"weights"}


def test_a_weight_that_became_a_constant_is_found(honest: TorchFiles, tmp_path: Path) -> None:
    graph = honest.proven.graphs["encoder"]
    kept = [name for name in graph.weights() if "linear2.weight" not in name]
    reports = honest.verify("encoder", saved(honest, "encoder", scripted(graph.module, kept), tmp_path))
    assert "weights" in found(reports)
    assert "linear2.weight is not in the file" in messages(reports)
    assert "a constant of the size of a weight" in messages(reports)


def test_weights_of_another_graph_are_found(honest: TorchFiles, tmp_path: Path) -> None:
    graph = honest.proven.graphs["encoder"]
    kept = [*graph.weights(), "classification.weight"]
    reports = honest.verify("encoder", saved(honest, "encoder", scripted(graph.module, kept), tmp_path))
    assert found(reports) == {"weights"}
    assert "classification.weight is in the file, but the graph has no such weight" in messages(reports)


class Unread(GraphModule):
    def forward(self, src: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        embedded = self.model.src_token_embedding(src.transpose(0, 1))
        return self.model.my_transformer.encoder(embedded, src_key_padding_mask=src_key_padding_mask).transpose(0, 1)


class Turned(GraphModule):
    def forward(self, src: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        turned = None if src_key_padding_mask is None else ~src_key_padding_mask
        return self.model.encode(src, turned)


class Ignored(GraphModule):
    def forward(self, src: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        return self.model.encode(src)


class Baked(GraphModule):
    def forward(self, src: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        return self.model.encode(src, src_key_padding_mask).reshape(2, -1, 16)


class Renamed(GraphModule):
    def forward(self, tokens: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        return self.model.encode(tokens, src_key_padding_mask)


class Twice(GraphModule):
    def forward(self, src: Tensor, src_key_padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        memory = self.model.encode(src, src_key_padding_mask)
        return memory, memory


class Needed(GraphModule):
    def forward(self, src: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        return self.model.encode(src, src_key_padding_mask)


class Almost(GraphModule):
    def forward(self, src: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        return self.model.encode(src, src_key_padding_mask) + 1e-6


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (Unread, {"weights", "rounding", "structure"}),
        (Turned, {"rounding", "structure"}),
        (Ignored, {"rounding", "structure"}),
        (Baked, {"runtime", "interface"}),
        (Renamed, {"interface", "runtime", "rounding", "structure"}),
        (Twice, {"interface", "rounding", "structure"}),
        (Needed, {"runtime"}),
    ],
)
def test_a_graph_that_does_something_else_is_found(
    module: type[GraphModule], expected: set[str], honest: TorchFiles, tmp_path: Path
) -> None:
    graph = honest.proven.graphs["encoder"]
    wrong = scripted(module(honest.proven.model), list(graph.weights()))
    assert found(honest.verify("encoder", saved(honest, "encoder", wrong, tmp_path))) == expected


def test_what_hides_in_the_rounding_is_found_by_structure(honest: TorchFiles, tmp_path: Path) -> None:
    wrong = scripted(Almost(honest.proven.model), list(honest.proven.graphs["encoder"].weights()))
    plain, lifted = honest.verify("encoder", saved(honest, "encoder", wrong, tmp_path))
    assert plain.passed
    assert found([lifted]) == {"structure"}


def test_a_file_in_training_mode_is_found(honest: TorchFiles, tmp_path: Path) -> None:
    with quiet():
        module = torch.jit.script(honest.proven.graphs["full"].module)
    module.train()
    reports = honest.verify("full", saved(honest, "full", module, tmp_path))
    assert found(reports) == {"rounding", "structure"}
    assert not honest.proven.model.training


def test_the_exporter_leaves_training_mode_by_itself(tmp_path: Path) -> None:
    files = TorchFiles(Proven(shaken(translation())), "torchscript", tmp_path)
    files.proven.model.train()
    files.path("encoder")
    assert files.proven.model.training
    files.proven.model.eval()
    assert_passed(files.verify("encoder"))
