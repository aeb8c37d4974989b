"""Files of torch.export: they agree with the model, hold its weights and contract, and run at every size."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from exported_models import KINDS, shaken, translation
from mytx.exporter.errors import ExportError, OptionError
from mytx.exporter.formats import pt2 as pt2_format
from mytx.exporter.formats.pt2 import load
from mytx.exporter.parity.judge import check_interface
from mytx.exporter.parity.weights import find_weights
from mytx.exporter.quiet import quiet
from mytx.exporter.runtimes.pt2 import ExportedGraph
from mytx.transformer import MyTransformerEncoderLayer
from repository import ROOT
from torch_files import Proven, TorchFiles, assert_passed, assert_untouched, state


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


@pytest.mark.parametrize("kind", ["translation", "bare, every mask"])
@pytest.mark.parametrize("name", ["encoder", "decoder", "full"])
def test_pytorch_alone_calls_a_file_by_position_or_by_name(
    files: Callable[[str], TorchFiles], kind: str, name: str
) -> None:
    made = files(kind)
    cases, expected, _ = made.proven.cases(name)
    inputs = [torch.from_numpy(cases[0].inputs[spec.name]) for spec in made.contract(name).inputs]
    with quiet(), torch.inference_mode():
        module = torch.export.load(made.path(name)).module()
        by_position = module(*inputs)
        by_name = module.forward(**dict(zip([spec.name for spec in made.contract(name).inputs], inputs, strict=True)))
    (reference,) = expected[0].values()
    assert np.allclose(by_position, reference.values, atol=1e-5)
    assert torch.equal(by_position, by_name)


def test_no_graph_needs_another(honest: TorchFiles) -> None:
    assert pt2_format.needs(honest.proven.graphs, "full") == ()
