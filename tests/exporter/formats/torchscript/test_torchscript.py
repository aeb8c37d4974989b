"""TorchScript files: they are right, hold what they should, and faults in them are found."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from exported_models import KINDS, shaken, translation
from repository import ROOT
from torch import Tensor
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
from mytx.exporter.formats import torchscript as torchscript_format
from mytx.exporter.formats.table import ExportOptions
from mytx.exporter.formats.torch_files import describe_file
from mytx.exporter.formats.torchscript import load
from mytx.exporter.graphs.modules import Encode, GraphModule
from mytx.exporter.parity.weights import find_weights
from mytx.exporter.quiet import quiet
from mytx.exporter.runtimes.torchscript import TorchScript
from mytx.transformer import MyTransformerEncoderLayer


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TorchFiles]:
    return files_in("torchscript", tmp_path_factory)


@pytest.fixture
def honest(files: Callable[[str], TorchFiles]) -> TorchFiles:
    return files("translation")


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


# --- honest files ----------------------------------------------------------------------------------------------------


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


def test_nothing_is_left_beside_the_file(honest: TorchFiles) -> None:
    honest.path("encoder")
    assert all(path.name.endswith(".ts.pt") for path in honest.folder.iterdir())


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


# --- planted faults --------------------------------------------------------------------------------------------------


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


# --- files that are none ---------------------------------------------------------------------------------------------


def test_a_foreign_file_is_refused(honest: TorchFiles, tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    torch.save(honest.proven.model.state_dict(), weights)
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("a/b.txt", "text")
    (tmp_path / "text.pt").write_text("text")
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps({"a": 1}))
    whole = honest.path("encoder").read_bytes()
    (tmp_path / "half.pt").write_bytes(whole[: len(whole) // 2])
    program = TorchFiles(honest.proven, "pt2", tmp_path).path("encoder")
    for path, words in {
        weights: "weights without a graph",
        other: "another zip archive",
        tmp_path / "text.pt": "not an archive of PyTorch, or is truncated",
        tmp_path / "empty.pt": "not an archive of PyTorch, or is truncated",
        tmp_path / "pickle.pt": "not an archive of PyTorch, or is truncated",
        tmp_path / "half.pt": "not an archive of PyTorch, or is truncated",
        program: "a torch.export archive",
        tmp_path / "missing.pt": "No such file",
        tmp_path: "cannot be read",
    }.items():
        with pytest.raises(BundleError, match=words) as error:
            TorchScript.open(path)
        assert str(error.value).count("\n") == 1
        assert [finding.check for finding in find_weights("torchscript", path, {})] == ["weights"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data.pkl": b"garbage"}, "is damaged"),
        ({"data/0": None}, "is damaged"),
        ({"extra/mytx.json": b"{}"}, "holds no contract"),
        ({"extra/mytx.json": b"\xff"}, "holds no contract"),
        ({"planted.pkl": pickle.dumps(1)}, "'planted.pkl' is not one that torch.jit.save writes"),
        ({"code/../../x.py": b""}, "is not one that"),
        ({"DATA.pkl": b""}, "stands there twice"),
    ],
)
def test_a_damaged_or_planted_record_is_refused(
    changes: dict[str, bytes | None], words: str, honest: TorchFiles, tmp_path: Path
) -> None:
    with pytest.raises(BundleError, match=re.escape(words)) as error:
        TorchScript.open(repack(honest.path("encoder"), tmp_path / "x.ts.pt", changes))
    assert str(error.value).count("\n") == 1


def test_python_in_its_pickle_does_not_run(honest: TorchFiles, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = repack(honest.path("encoder"), tmp_path / "x.ts.pt", {"data.pkl": pickle.dumps(Touch(marker), 2)})
    with pytest.raises(BundleError, match="is damaged"):
        TorchScript.open(path)
    assert not marker.exists()


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return Path.touch, (self.path,)


def test_without_the_contract_a_file_still_runs(honest: TorchFiles, tmp_path: Path) -> None:
    path = repack(honest.path("encoder"), tmp_path / "encoder.ts.pt", {"extra/mytx.json": None})
    assert list(TorchScript.open(path).run({"src": np.ones((1, 1), dtype=np.int64)})) == ["output 0"]
    assert "output memory is missing" in messages(honest.verify("encoder", path))


def test_no_graph_needs_another(honest: TorchFiles) -> None:
    assert torchscript_format.needs(honest.proven.graphs, "full") == ()


def test_export_writes_where_it_is_told(honest: TorchFiles, tmp_path: Path) -> None:
    with quiet():
        torchscript_format.export({"encoder": honest.proven.graphs["encoder"]}, "encoder", tmp_path, ExportOptions())
    assert [path.name for path in tmp_path.iterdir()] == ["encoder.ts.pt"]
    assert isinstance(honest.proven.graphs["encoder"].module, Encode)
