"""torch.export files: they are right, hold what they should, run no planted code, and faults in them are found."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_models import KINDS, shaken, translation
from planting_code import Changes, Touch, plants
from repository import ROOT
from torch import Tensor, nn
from torch_files import (
    Proven,
    TorchFiles,
    assert_passed,
    assert_untouched,
    files_in,
    found,
    messages,
    repack,
    state,
)

from mytx.exporter.errors import BundleError, ExportError, OptionError
from mytx.exporter.formats import pt2 as pt2_format
from mytx.exporter.formats.program import export_program
from mytx.exporter.formats.program_text import is_expression
from mytx.exporter.formats.pt2 import load
from mytx.exporter.formats.torch_files import describe_file
from mytx.exporter.graphs.graph import Graph
from mytx.exporter.graphs.modules import GraphModule
from mytx.exporter.parity.judge import check_interface
from mytx.exporter.parity.weights import find_weights
from mytx.exporter.quiet import quiet
from mytx.exporter.runtimes.pt2 import ExportedGraph
from mytx.transformer import MyTransformerEncoderLayer


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TorchFiles]:
    return files_in("pt2", tmp_path_factory)


@pytest.fixture
def honest(files: Callable[[str], TorchFiles]) -> TorchFiles:
    return files("translation")


def saved(files: TorchFiles, name: str, program: Any, folder: Path) -> Path:
    """A program as the file of a graph."""
    path = folder / files.known.file(name)
    with quiet():
        torch.export.save(program, path, extra_files=describe_file(files.contract(name), "test"))
    return path


# --- honest files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_graph_of_every_kind_passes(kind: str, files: Callable[[str], TorchFiles]) -> None:
    for name in files(kind).proven.graphs:
        files(kind).path(name)
    for name in files(kind).proven.graphs:
        assert_passed(files(kind).verify(name))


@pytest.mark.parametrize(("activation", "layers"), [("relu", 6), ("gelu", 1), ("silu", 2)])
def test_every_activation_and_depth_passes(activation: str, layers: int, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = shaken(translation(num_encoder_layers=layers, num_decoder_layers=1, activation=activation))
    assert_passed(TorchFiles(Proven(model), "pt2", tmp_path).verify("encoder"))


class HalvedLayer(MyTransformerEncoderLayer):
    def forward(
        self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None
    ) -> Tensor:
        src = self.norm1(src + 0.5 * self._attend(src, src_mask, src_key_padding_mask))
        return self.norm2(
            src + torch.einsum("sne,ef->snf", 0.5 * self._feed_forward(src), torch.eye(16, dtype=src.dtype))
        )


class BranchingLayer(MyTransformerEncoderLayer):
    def forward(
        self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None
    ) -> Tensor:
        return src if src.sum() > 0 else -src


def test_a_users_own_layer_passes(tmp_path: Path) -> None:
    model = translation()
    model.my_transformer.encoder.layers[0] = HalvedLayer(16, 4, 24)
    files = TorchFiles(Proven(shaken(model)), "pt2", tmp_path)
    assert_passed(files.verify("encoder"))


def test_what_does_not_export_is_an_export_error(tmp_path: Path) -> None:
    model = translation()
    model.my_transformer.encoder.layers[0] = BranchingLayer(16, 4, 24)
    with pytest.raises(ExportError, match="could not export the encoder graph"):
        TorchFiles(Proven(shaken(model)), "pt2", tmp_path).path("encoder")
    assert not list(tmp_path.iterdir())


def test_tied_weights_pass(tmp_path: Path) -> None:
    model = shaken(translation())
    model.classification.weight = model.tgt_token_embedding.embedding.weight
    files = TorchFiles(Proven(model), "pt2", tmp_path)
    assert_passed(files.verify("decoder"))
    state_dict = load(files.path("decoder")).state_dict
    tied = ("model.classification.weight", "model.tgt_token_embedding.embedding.weight")
    assert len({state_dict[name].data_ptr() for name in tied}) == 1


@pytest.mark.parametrize("kind", ["translation", "couplet", "bare", "average pooling"])
def test_a_file_holds_the_weights_of_its_graph_alone(kind: str, files: Callable[[str], TorchFiles]) -> None:
    for name, graph in files(kind).proven.graphs.items():
        program = load(files(kind).path(name))
        assert {key.removeprefix("model.") for key in program.state_dict} == set(graph.weights())
        assert not program.constants


def test_the_model_is_untouched(tmp_path: Path) -> None:
    model = shaken(translation())
    files = TorchFiles(Proven(model), "pt2", tmp_path)
    before = state(model)
    files.path("encoder")
    assert_untouched(model, before)


def test_no_path_of_this_machine_is_in_the_file(honest: TorchFiles) -> None:
    content = honest.path("decoder").read_bytes()
    assert str(ROOT).encode() not in content
    assert b"site-packages" not in content


@pytest.mark.parametrize("kind", ["translation", "bare, every mask"])
def test_it_says_its_dimensions_by_the_names_of_the_contract(kind: str, files: Callable[[str], TorchFiles]) -> None:
    for name, graph in files(kind).proven.graphs.items():
        contract = graph.contract
        description = ExportedGraph.open(files(kind).path(name)).describe()
        assert description.inputs == {spec.name: (spec.dtype, spec.labels) for spec in contract.inputs}
        assert description.outputs == {spec.name: (spec.dtype, spec.labels) for spec in contract.outputs}
        lifted = ExportedGraph.open(files(kind).path(name), lifted=True).describe()
        assert check_interface(contract.lifted(), lifted) == []


def test_it_runs_at_the_ends_of_its_ranges(honest: TorchFiles) -> None:
    runtime = ExportedGraph.open(honest.path("encoder"))
    for batch, source in ((1, 1), (1, 64), (9, 2)):
        src = np.ones((batch, source), dtype=np.int64)
        found = runtime.run({"src": src, "src_key_padding_mask": src == 0})
        assert found["memory"].shape == (batch, source, 16)
    src = np.ones((1, 65), dtype=np.int64)
    with pytest.raises(RuntimeError, match="64") as error:
        runtime.run({"src": src, "src_key_padding_mask": src == 0})
    assert "\n" not in str(error.value)


def test_many_shapes_do_not_change_the_results(honest: TorchFiles) -> None:
    cases, _, number = honest.proven.cases("decoder")
    runtime = ExportedGraph.open(honest.path("decoder"))
    first = [runtime.run(case.inputs) for case in cases[:number]]
    for case, before in zip(cases, first, strict=False):
        assert np.array_equal(runtime.run(case.inputs)["logits"], before["logits"])


def test_opening_and_running_warns_of_nothing(honest: TorchFiles, recwarn: pytest.WarningsRecorder) -> None:
    path = honest.path("encoder")
    warnings.simplefilter("always")
    src = np.ones((2, 3), dtype=np.int64)
    src.flags.writeable = False
    ExportedGraph.open(path).run({"src": src, "src_key_padding_mask": src == 0})
    find_weights("pt2", path, honest.weights("encoder"))
    assert [str(warning.message) for warning in recwarn] == []


def test_another_dtype_is_named(honest: TorchFiles) -> None:
    src = np.ones((2, 3), dtype=np.int64)
    with pytest.raises(OptionError, match="src_key_padding_mask is int64, the graph takes bool"):
        ExportedGraph.open(honest.path("encoder")).run({"src": src, "src_key_padding_mask": src})


def test_the_file_holds_its_contract_for_others(honest: TorchFiles) -> None:
    extra = {"mytx.json": ""}
    with quiet():
        torch.export.load(honest.path("full"), extra_files=extra)
    assert json.loads(extra["mytx.json"])["contract"] == json.loads(json.dumps(honest.contract("full").to_dict()))
    assert json.loads(extra["mytx.json"])["producer"] == "test"


# --- planted faults --------------------------------------------------------------------------------------------------


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


# --- planted code ----------------------------------------------------------------------------------------------------


def torch_runs(path: Path) -> None:
    """Open a file in PyTorch alone, and run it once."""
    src = torch.ones(2, 7, dtype=torch.int64)
    with quiet():
        torch.export.load(path).module()(src=src, src_key_padding_mask=src == 0)


@pytest.mark.parametrize("plant", plants())
def test_planted_code_is_refused_before_it_runs(plant: str, honest: TorchFiles, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    changes, words, runs = plants()[plant]
    path = repack(honest.path("encoder"), tmp_path / "encoder.pt2", changes(marker))
    for attempt in (load, ExportedGraph.open):
        with pytest.raises(BundleError, match=words) as error:
            attempt(path)
        assert str(error.value).count("\n") == 1
    assert [finding.check for finding in find_weights("pt2", path, honest.weights("encoder"))] == ["weights"]
    assert not marker.exists()
    if runs:  # so that the plant is one: PyTorch alone falls for it
        with pytest.raises(Exception):  # noqa: B017,PT011 - whatever PyTorch makes of what is left
            torch_runs(path)
        assert marker.exists()


@pytest.mark.parametrize(
    "text",
    [
        "Mul(Integer(4), Symbol('s25', positive=True, integer=True))",
        "Pow(Symbol('s50'), Integer(2))",
        "L['tgt_mask'].size()[0] == (2*L['tgt'].size()[1])",
        "4*s52",
        "Max(1, s0) <= 5 and not s1 > 3",
    ],
)
def test_arithmetic_is_an_expression(text: str) -> None:
    assert is_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "exit()",
        "s0.__class__",
        "L['src'].size(*[1])",
        "L['src'].numpy()",
        "Symbol('__import__(1)')",
        "Symbol.mro()",
        "(lambda: 1)()",
        "[x for x in s0]",
        "f'{s0}'",
        "s0 if s1 else s2",
        "(s0 := 1)",
        "Symbol('s0')('x')",
        "eval",
        "s0; s1",
        "s0 == 1, 2",
        "b'x'",
        "",
        "(" * 500 + ")" * 500,
    ],
)
def test_anything_else_is_none(text: str) -> None:
    assert not is_expression(text)


# --- files that are none ---------------------------------------------------------------------------------------------


def test_a_foreign_file_is_refused(honest: TorchFiles, tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt2"
    torch.save(honest.proven.model.state_dict(), weights)
    other = tmp_path / "other.pt2"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("a/b.txt", "text")
        archive.writestr("c.txt", "text")
    (tmp_path / "text.pt2").write_text("text")
    (tmp_path / "pickle.pt2").write_bytes(pickle.dumps(Touch(tmp_path / "marker")))
    whole = honest.path("encoder").read_bytes()
    (tmp_path / "half.pt2").write_bytes(whole[: len(whole) // 2])
    script = TorchFiles(honest.proven, "torchscript", tmp_path).path("encoder")
    for path, words in {
        weights: "weights without a graph",
        other: "another zip archive",
        tmp_path / "text.pt2": "not an archive of PyTorch, or is truncated",
        tmp_path / "pickle.pt2": "not an archive of PyTorch, or is truncated",
        tmp_path / "half.pt2": "not an archive of PyTorch, or is truncated",
        script: "a TorchScript archive",
        tmp_path / "missing.pt2": "No such file",
        tmp_path: "cannot be read",
    }.items():
        with pytest.raises(BundleError, match=words) as error:
            ExportedGraph.open(path)
        assert str(error.value).count("\n") == 1
        assert [finding.check for finding in find_weights("pt2", path, {})] == ["weights"]
    assert not (tmp_path / "marker").exists()


def empty(content: bytes) -> bytes:
    return b'{"config": {}}'


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"models/model.json": b"{}"}, "is damaged"),
        ({"models/model.json": b"{"}, "is not JSON"),
        ({"models/model.json": b"[" * 100_000}, "is not JSON"),
        ({"data/weights/weight_0": None}, "has no data/weights/weight_0"),
        ({"data/weights/weight_0": b"12345678"}, "is damaged"),
        ({"data/weights/model_weights_config.json": b"[]"}, "lists no weights"),
        ({"data/weights/model_weights_config.json": empty}, "is damaged"),
        ({"data/constants/model_constants_config.json": None}, "has no data/constants"),
        ({"data/sample_inputs/model.pt": None}, "has no data/sample_inputs"),
        ({"archive_version": b"7"}, "is damaged"),
        ({"archive_format": b"pt3"}, "truncated or damaged"),
        ({"extra/mytx.json": b"{}"}, "holds no contract"),
        ({"MODELS/model.json": b"{}"}, "stands there twice"),
    ],
)
def test_a_damaged_record_is_refused(changes: Changes, words: str, honest: TorchFiles, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=re.escape(words)) as error:
        ExportedGraph.open(repack(honest.path("encoder"), tmp_path / "encoder.pt2", changes))
    assert str(error.value).count("\n") == 1


def test_an_archive_behind_another_is_not_taken_for_it(honest: TorchFiles, tmp_path: Path) -> None:
    changes, _, _ = plants()["sample inputs"]
    evil = repack(honest.path("encoder"), tmp_path / "evil.pt2", changes(tmp_path / "marker"))
    for number, (first, second) in enumerate([(evil, honest.path("encoder")), (honest.path("encoder"), evil)]):
        path = tmp_path / f"both{number}.pt2"
        path.write_bytes(first.read_bytes() + second.read_bytes())
        with pytest.raises(BundleError):
            load(path)
    assert not (tmp_path / "marker").exists()


def test_no_graph_needs_another(honest: TorchFiles) -> None:
    assert pt2_format.needs(honest.proven.graphs, "full") == ()
