"""TorchScript files: they agree with the model, hold its weights and contract, and run at every size."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from exported_models import KINDS, shaken, translation
from mytx.exporter.errors import ExportError, OptionError
from mytx.exporter.formats import torchscript as torchscript_format
from mytx.exporter.formats.table import ExportOptions
from mytx.exporter.formats.torchscript import load
from mytx.exporter.graphs.modules import Encode
from mytx.exporter.parity.weights import find_weights
from mytx.exporter.quiet import quiet
from mytx.exporter.runtimes.torchscript import TorchScript
from mytx.transformer import MyTransformerEncoderLayer
from repository import ROOT
from torch_files import Proven, TorchFiles, assert_passed, assert_untouched, state


@pytest.mark.parametrize("kind", KINDS)
def test_every_graph_of_every_kind_passes(kind: str, files: Callable[[str], TorchFiles]) -> None:
    for name in files(kind).proven.graphs:
        files(kind).path(name)
    for name in files(kind).proven.graphs:
        assert_passed(files(kind).verify(name))


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("layers", [1, 6])
def test_every_activation_and_depth_passes(activation: str, layers: int, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = shaken(translation(num_encoder_layers=layers, num_decoder_layers=layers, activation=activation))
    assert_passed(TorchFiles(Proven(model), "torchscript", tmp_path).verify("full"))


class HalvedLayer(MyTransformerEncoderLayer):
    def forward(
        self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None
    ) -> Tensor:
        src = self.norm1(src + 0.5 * self._attend(src, src_mask, src_key_padding_mask))
        return self.norm2(src + 0.5 * self._feed_forward(src))


class PickyLayer(MyTransformerEncoderLayer):
    def forward(self, src: Tensor, *masks: Tensor) -> Tensor:
        return super().forward(src, *masks)


def test_a_users_own_layer_passes(tmp_path: Path) -> None:
    model = translation()
    model.my_transformer.encoder.layers[0] = HalvedLayer(16, 4, 24)
    assert_passed(TorchFiles(Proven(shaken(model)), "torchscript", tmp_path).verify("encoder"))


def test_what_does_not_script_is_an_export_error(tmp_path: Path) -> None:
    model = translation()
    model.my_transformer.encoder.layers[0] = PickyLayer(16, 4, 24)
    with pytest.raises(ExportError, match="TorchScript cannot take the encoder graph"):
        TorchFiles(Proven(shaken(model)), "torchscript", tmp_path).path("encoder")
    assert not list(tmp_path.iterdir())


def test_tied_weights_pass_and_stay_tied(tmp_path: Path) -> None:
    model = shaken(translation())
    model.classification.weight = model.tgt_token_embedding.embedding.weight
    files = TorchFiles(Proven(model), "torchscript", tmp_path)
    assert_passed(files.verify("decoder"))
    weights = load(files.path("decoder")).state_dict()
    places = {weights[f"model.{name}"].data_ptr() for name in weights_tied()}
    assert len(places) == 1


def weights_tied() -> tuple[str, str]:
    return "classification.weight", "tgt_token_embedding.embedding.weight"


@pytest.mark.parametrize("kind", ["translation", "couplet", "bare", "average pooling"])
def test_a_file_holds_the_weights_of_its_graph_alone(kind: str, files: Callable[[str], TorchFiles]) -> None:
    for name, graph in files(kind).proven.graphs.items():
        held = {key.removeprefix("model.") for key in load(files(kind).path(name)).state_dict()}
        assert held == set(graph.weights())
    assert len(load(files(kind).path("encoder")).state_dict()) < len(files(kind).proven.model.state_dict())


def test_the_model_is_untouched(tmp_path: Path) -> None:
    model = shaken(translation())
    files = TorchFiles(Proven(model), "torchscript", tmp_path)
    before = state(model)
    files.path("full")
    files.path("encoder")
    assert_untouched(model, before)


def test_no_path_of_this_machine_is_in_the_file(honest: TorchFiles) -> None:
    with zipfile.ZipFile(honest.path("decoder")) as archive:
        content = b"".join(archive.read(name) for name in archive.namelist())
    assert str(ROOT).encode() not in content
    assert b"site-packages" not in content


def test_nothing_is_left_beside_the_file(honest: TorchFiles, tmp_path: Path) -> None:
    honest.export("encoder", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["encoder.ts.pt"]


@pytest.mark.parametrize("name", ["encoder", "decoder", "full"])
def test_many_shapes_do_not_change_the_results(name: str, honest: TorchFiles) -> None:
    cases, _, _ = honest.proven.cases(name)
    runtime = TorchScript.open(honest.path(name))
    first = [runtime.run(case.inputs) for case in cases]
    for case, before in zip(cases, first, strict=True):
        for output, array in runtime.run(case.inputs).items():
            assert np.array_equal(array, before[output])
    fresh = TorchScript.open(honest.path(name)).run(cases[-1].inputs)
    for output, array in fresh.items():
        np.testing.assert_allclose(array, first[-1][output], rtol=1e-5, atol=1e-6)


def test_it_is_called_by_position_with_masks_left_out(honest: TorchFiles) -> None:
    module = load(honest.path("decoder"))
    tgt, memory = torch.ones(1, 1, dtype=torch.int64), torch.randn(1, 1, 16)
    with torch.no_grad():
        assert torch.allclose(module(tgt, memory), honest.proven.model.decode(tgt, memory), atol=1e-6)
        hidden = torch.tensor([[False]])
        assert torch.equal(module(tgt, memory, None, hidden), module(tgt, memory, memory_key_padding_mask=hidden))


def test_the_loaded_module_converts_and_goes_to_evaluation(honest: TorchFiles) -> None:
    module = load(honest.path("encoder")).eval().double()
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float64}
    assert module(torch.ones(2, 3, dtype=torch.int64)).dtype == torch.float64


def test_the_file_holds_its_contract(honest: TorchFiles) -> None:
    runtime = TorchScript.open(honest.path("decoder"))
    assert runtime.contract == honest.contract("decoder")
    description = runtime.describe()
    assert list(description.inputs) == ["tgt", "memory", "tgt_key_padding_mask", "memory_key_padding_mask"]
    assert list(description.outputs) == ["logits"]


def test_opening_and_running_warns_of_nothing(honest: TorchFiles, recwarn: pytest.WarningsRecorder) -> None:
    path = honest.path("encoder")
    warnings.simplefilter("always")
    array = np.ones((2, 3), dtype=np.int64)
    array.flags.writeable = False
    TorchScript.open(path).run({"src": array})
    find_weights("torchscript", path, honest.weights("encoder"))
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"src": np.ones((2, 3))}, "src is float64, the graph takes int64"),
        ({"src_key_padding_mask": np.zeros((2, 3), dtype=np.float32)}, "is float32, the graph takes bool"),
    ],
)
def test_another_dtype_is_named(honest: TorchFiles, inputs: dict[str, np.ndarray], words: str) -> None:
    runtime = TorchScript.open(honest.path("encoder"))
    with pytest.raises(OptionError, match=words):
        runtime.run({"src": np.ones((2, 3), dtype=np.int64), **inputs})


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"src": np.ones((2, 65), dtype=np.int64)}, "65"),
        ({"src": np.ones((2, 3), dtype=np.int64), "src_key_padding_mask": np.zeros((3, 3), dtype=bool)}, "[3, 3]"),
        ({}, "src"),
        ({"src": np.ones((2, 3), dtype=np.int64), "mask": np.zeros((2, 3), dtype=bool)}, "mask"),
    ],
)
def test_a_run_that_fails_says_why_in_one_line(honest: TorchFiles, inputs: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(RuntimeError) as error:
        TorchScript.open(honest.path("encoder")).run(inputs)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_no_graph_needs_another(honest: TorchFiles) -> None:
    assert torchscript_format.needs(honest.proven.graphs, "full") == ()


def test_export_writes_where_it_is_told(honest: TorchFiles, tmp_path: Path) -> None:
    with quiet():
        torchscript_format.export({"encoder": honest.proven.graphs["encoder"]}, "encoder", tmp_path, ExportOptions())
    assert [path.name for path in tmp_path.iterdir()] == ["encoder.ts.pt"]
    assert isinstance(honest.proven.graphs["encoder"].module, Encode)
