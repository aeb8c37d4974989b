"""``weights.bin``: each weight once, for all ONNX files of a bundle; and what is wrong with it is found."""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from cli_support import Result, assert_refused, run_here

from bundles import LETTERS, SOUNDS, tiny_model
from mytx.exporter import BundleError, OptionError, export_bundle, open_bundle
from mytx.exporter.bundle.manifest import describe_files
from mytx.exporter.bundle.rebuild import rebuild
from mytx.exporter.formats.onnx import shared_weights
from mytx.exporter.formats.onnx.shared_weights import PAGE, SMALLEST, WEIGHTS, SharedWeights, shares, write_weights
from mytx.exporter.formats.onnx.storage import read_model, read_values
from mytx.exporter.formats.table import PLAIN
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.parity.lending import lent
from mytx.exporter.parity.weights import find_weights
from mytx.models import CoupletModel, Model, TranslationModel
from mytx.models.vocab import Vocabulary

Run = Callable[..., Result]
WEIGHT = "my_transformer.encoder.layers.0.self_attn.q_proj.weight"


@functools.cache
def shared_bundle() -> Path:
    """The folder of a bundle whose files share their weights; copy it before you change it."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    options = {"components": PLAIN, "weights": "shared", "level": "quick"}
    result = export_bundle(tiny_model(), folder / "bundle", vocabulary=Vocabulary(LETTERS, SOUNDS), **options)
    assert result.passed
    return folder / "bundle"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """One to do as one likes with."""
    return Path(shutil.copytree(shared_bundle(), tmp_path / "bundle"))


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    return lambda *arguments: run_here(capfd, *arguments)


def relist(folder: Path) -> None:
    """Let the manifest agree with the files, as a tool that writes both would."""
    path = folder / "manifest.json"
    files = [vars(entry) for entry in describe_files(folder)]
    path.write_text(json.dumps({**json.loads(path.read_text()), "files": files}))


def tensors_of(path: Path) -> dict[str, onnx.TensorProto]:
    """Those of a file that are in weights.bin."""
    return {tensor.name: tensor for tensor in read_model(path)[1] if tensor.external_data}


def place_of(tensor: onnx.TensorProto) -> dict[str, str]:
    return {item.key: item.value for item in tensor.external_data}


def arrays_of(model: Model) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


# --- the layout ------------------------------------------------------------------------------------------------------


def test_all_graphs_refer_to_one_file_and_hold_no_large_weight_themselves() -> None:
    folder = shared_bundle()
    assert {"encoder.onnx", "decoder.onnx", "full.onnx", WEIGHTS} <= {path.name for path in folder.iterdir()}
    for name in PLAIN:
        inside = [tensor for tensor in read_model(folder / f"{name}.onnx")[1] if not tensor.external_data]
        assert all(len(tensor.raw_data) < SMALLEST for tensor in inside)
        assert {place_of(tensor)["location"] for tensor in tensors_of(folder / f"{name}.onnx").values()} == {WEIGHTS}
    full, encoder = tensors_of(folder / "full.onnx"), tensors_of(folder / "encoder.onnx")
    assert len(full) > len(encoder) > 5
    assert all(place_of(full[name]) == place_of(encoder[name]) for name in encoder)


def test_each_weight_stands_at_its_place_bit_for_bit() -> None:
    folder, state = shared_bundle(), arrays_of(tiny_model())
    data = (folder / WEIGHTS).read_bytes()
    index = SharedWeights(folder / WEIGHTS).index
    assert set(index) == {name for name, array in state.items() if array.nbytes >= SMALLEST}
    for name, entry in index.items():
        assert data[entry["offset"] : entry["offset"] + entry["bytes"]] == state[name].tobytes()
        assert (entry["dtype"], entry["shape"]) == (str(state[name].dtype), list(state[name].shape))
        assert entry["offset"] % (PAGE if entry["bytes"] >= PAGE else 64) == 0
    places = sorted((entry["offset"], entry["offset"] + entry["bytes"]) for entry in index.values())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))


def test_the_same_weights_give_the_same_file(tmp_path: Path) -> None:
    weights = {name: {key: t.numpy() for key, t in g.weights().items()} for name, g in graphs_of(tiny_model()).items()}
    write_weights(tmp_path, weights)
    assert (tmp_path / WEIGHTS).read_bytes() == (shared_bundle() / WEIGHTS).read_bytes()


@pytest.mark.parametrize("count", [0, 1, 60, 400])
def test_an_index_of_any_length_stands_before_the_values(count: int, tmp_path: Path) -> None:
    """The index tells offsets, and offsets depend on its length."""
    rng = np.random.default_rng(0)
    arrays = {f"{'name' * 10}{i}": rng.standard_normal(256 + i % 3 * 1024).astype(np.float32) for i in range(count)}
    write_weights(tmp_path, {"any": arrays})
    shared = SharedWeights(tmp_path / WEIGHTS)
    assert list(shared.index) == list(arrays)
    for name, array in arrays.items():
        place = shared.find(ir.tensor(array, name="another name"))
        assert place is not None
        found = np.fromfile(shared.path, np.float32, array.size, offset=place.offset)
        assert np.array_equal(found, array), name
    assert shared.find(ir.tensor(rng.standard_normal(256).astype(np.float32))) is None


def tied_embeddings() -> TranslationModel:
    model = TranslationModel(40, 40, 16, 2, 1, 1, 24, 0.1, max_length=40)
    model.classification.weight = model.src_token_embedding.embedding.weight = (
        model.tgt_token_embedding.embedding.weight
    )
    return model


def tied_couplet() -> CoupletModel:
    model = CoupletModel(40, 16, 2, 1, 1, 24, max_length=40)
    model.classification.weight = model.token_embedding.embedding.weight
    return model


def equal_embeddings() -> TranslationModel:
    model = TranslationModel(40, 40, 16, 2, 1, 1, 24, 0.1, max_length=40)
    with torch.no_grad():
        model.classification.weight.copy_(model.tgt_token_embedding.embedding.weight)
        model.src_token_embedding.embedding.weight.copy_(model.tgt_token_embedding.embedding.weight)
    return model


@pytest.mark.parametrize("build", [equal_embeddings, tied_embeddings, tied_couplet])
@pytest.mark.parametrize("weights", ["shared", "inline"])
def test_tied_and_equal_weights_are_stored_once_and_proven(
    build: Callable[[], Model], weights: str, tmp_path: Path
) -> None:
    model = build()
    options = {"components": PLAIN, "weights": weights, "level": "quick"}
    result = export_bundle(model, tmp_path / "bundle", **options)
    assert result.passed
    if weights == "shared":
        index = SharedWeights(tmp_path / "bundle" / WEIGHTS).index
        tied = [entry["offset"] for name, entry in index.items() if "embedding.weight" in name or "classif" in name]
        assert len(tied) > 1
        assert len(set(tied)) == 1
    rebuilt = rebuild(open_bundle(tmp_path / "bundle")).model
    assert all(torch.equal(tensor, rebuilt.state_dict()[name]) for name, tensor in model.state_dict().items())


# --- when ------------------------------------------------------------------------------------------------------------


def weights_of_size(size: int) -> dict[str, dict[str, np.ndarray]]:
    """Two graphs that have all weights in common; no memory is touched."""
    weights = {"w": np.empty(size, np.uint8)}
    return {"encoder": weights, "full": weights}


@pytest.mark.parametrize(
    ("mode", "size", "expected"),
    [("auto", 16 * 2**20, False), ("auto", 16 * 2**20 + 1, True), ("shared", 10, True), ("inline", 10**8, False)],
)
def test_weights_are_shared_where_they_are_large_or_it_is_asked_for(mode: str, size: int, expected: bool) -> None:
    assert shares(mode, weights_of_size(size)) is expected


def test_weights_that_are_too_large_for_a_file_cannot_be_in_it() -> None:
    with pytest.raises(OptionError, match=r"full\.onnx would hold 2\.3 GB of weights, .* at most 2 GB") as caught:
        shares("inline", {**weights_of_size(2_300_000_000), "encoder": {}})
    assert "--weights" in caught.value.hint


def test_a_way_to_store_weights_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no way 'twice' to store weights") as caught:
        export_bundle(tiny_model(), tmp_path / "bundle", weights="twice")
    assert "auto, inline, shared" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_too_large_a_file_is_refused_before_the_work(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_weights, "INLINE_LIMIT", 10_000)
    result = run("onnx", "-o", tmp_path / "bundle", "--weights", "inline")
    assert_refused(result, "would hold", "--weights inline")
    assert list(tmp_path.iterdir()) == []


def test_the_demo_model_is_small_and_stays_in_its_files(tmp_path: Path) -> None:
    from mytx.models import load_model
    from mytx.models.demo_files import demo_folder

    model = load_model(demo_folder())
    assert not shares("auto", {"all": arrays_of(model)})


# --- use -------------------------------------------------------------------------------------------------------------


def test_a_bundle_can_be_moved_and_renamed(run: Run, tmp_path: Path, bundle: Path) -> None:
    moved = tmp_path / "elsewhere" / "ändert nichts"
    moved.parent.mkdir()
    bundle.rename(moved)
    assert run("verify", moved).code == 0
    assert run("verify", moved, "--plan", "quick").code == 0
    assert run("run", moved, "abc").out == run("run", shared_bundle(), "abc").out != ""
    assert run("inspect", moved).code == 0
    assert run("locate", moved, "--graph", "full").code == 0
    for name in PLAIN:
        onnx.checker.check_model(str(moved / f"{name}.onnx"), full_check=True)


def test_files_that_are_made_side_by_side_share_the_same_weights(tmp_path: Path) -> None:
    options = {"components": PLAIN, "weights": "shared", "verify": False, "jobs": 2}
    export_bundle(tiny_model(), tmp_path / "bundle", vocabulary=Vocabulary(LETTERS, SOUNDS), **options)
    for name in [WEIGHTS, *(f"{graph}.onnx" for graph in PLAIN)]:
        assert (tmp_path / "bundle" / name).read_bytes() == (shared_bundle() / name).read_bytes(), name


def test_a_reproduction_holds_its_own_weights(run: Run, tmp_path: Path, bundle: Path) -> None:
    model = onnx.load(bundle / "decoder.onnx", load_external_data=False)
    norm = next(node for node in model.graph.node if node.op_type == "LayerNormalization")
    for attribute in norm.attribute:
        if attribute.name == "epsilon":
            attribute.f = 0.1
    onnx.save(model, bundle / "decoder.onnx")
    relist(bundle)
    result = run("locate", bundle, "--graph", "decoder", "-o", tmp_path / "reproduction")
    assert result.code == 1
    block = onnx.load(tmp_path / "reproduction" / "block.onnx", load_external_data=False)
    assert not any(tensor.external_data for tensor in block.graph.initializer)


# --- the model's own memory ------------------------------------------------------------------------------------------


def test_lent_weights_are_the_files_and_come_back_as_they_were() -> None:
    model = tiny_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pointers = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    with lent(model, shared_bundle()):
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, before[name])
            assert (tensor.data_ptr() != pointers[name]) is (tensor.nbytes >= SMALLEST)
        inside = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert tensor.data_ptr() != inside[name] or tensor.nbytes < SMALLEST


def test_what_is_written_to_lent_weights_is_not_written_to_the_file() -> None:
    model, data = tiny_model(), (shared_bundle() / WEIGHTS).read_bytes()
    with lent(model, shared_bundle()), torch.no_grad():
        weight = model.my_transformer.encoder.layers[0].linear1.weight
        changed = weight.add_(1).clone()
    assert torch.equal(weight, changed)
    assert (shared_bundle() / WEIGHTS).read_bytes() == data


def test_weights_that_are_not_the_files_are_not_lent() -> None:
    model = tiny_model()
    weight = model.my_transformer.encoder.layers[0].linear1.weight
    with torch.no_grad():
        weight.view(-1)[0] = torch.nextafter(weight.view(-1)[0], torch.tensor(9.0))
    pointer = weight.data_ptr()
    with lent(model, shared_bundle()):
        assert weight.data_ptr() == pointer


# --- faults ----------------------------------------------------------------------------------------------------------


def edit_place(path: Path, name: str, **changes: object) -> None:
    """Let a weight of a file be elsewhere."""
    model = onnx.load(path, load_external_data=False)
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == name]
    for item in tensor.external_data:
        if item.key in changes:
            item.value = str(changes[item.key])
    onnx.save(model, path)


def next_place(folder: Path, name: str) -> int:
    """Where the weight behind this one begins."""
    index = SharedWeights(folder / WEIGHTS).index
    return min(entry["offset"] for entry in index.values() if entry["offset"] > index[name]["offset"])


def offset_off_by_one_tensor(folder: Path, graph: str) -> None:
    edit_place(folder / f"{graph}.onnx", WEIGHT, offset=next_place(folder, WEIGHT))


def length_cut(folder: Path, graph: str) -> None:
    edit_place(folder / f"{graph}.onnx", WEIGHT, length=1020)


def behind_the_end(folder: Path, graph: str) -> None:
    edit_place(folder / f"{graph}.onnx", WEIGHT, offset=(folder / WEIGHTS).stat().st_size - 64)


def outside(folder: Path, graph: str) -> None:
    shutil.copy(folder / WEIGHTS, folder.parent / WEIGHTS)
    edit_place(folder / f"{graph}.onnx", WEIGHT, location=f"../{WEIGHTS}")


def absolute(folder: Path, graph: str) -> None:
    edit_place(folder / f"{graph}.onnx", WEIGHT, location=str(folder / WEIGHTS))


def flipped_bit(folder: Path, graph: str) -> None:
    path = folder / WEIGHTS
    data = bytearray(path.read_bytes())
    data[next_place(folder, WEIGHT) + 100] ^= 1
    path.write_bytes(data)


def truncated(folder: Path, graph: str) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[: SharedWeights(path).index[WEIGHT]["offset"] + 100])


def of_another_bundle(folder: Path, graph: str) -> None:
    """The same sizes, other weights: a file of one, the weights of the other."""
    torch.manual_seed(1)
    other = TranslationModel(len(LETTERS), len(SOUNDS), 16, 2, 1, 2, 24, 0.1, max_length=40)
    write_weights(folder, {"full": arrays_of(other)})


def gone(folder: Path, graph: str) -> None:
    (folder / WEIGHTS).unlink()


def linked(folder: Path, graph: str) -> None:
    (folder / WEIGHTS).rename(folder.parent / WEIGHTS)
    (folder / WEIGHTS).symlink_to(folder.parent / WEIGHTS)


IN_A_GRAPH = [length_cut, behind_the_end, outside, absolute]
FAULTS = [offset_off_by_one_tensor, *IN_A_GRAPH, flipped_bit, truncated, of_another_bundle, gone, linked]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("command", ["verify", "run", "locate"])
def test_a_damaged_bundle_is_refused_by_its_manifest(
    fault: Callable[[Path, str], None], command: str, run: Run, bundle: Path
) -> None:
    fault(bundle, "encoder")
    result = run(command, bundle, *(["abc"] if command == "run" else []))
    assert_refused(result, "hint: ")
    assert "manifest" in result.err or "link" in result.err or "missing" in result.err


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("graph", ["encoder", "full"])
def test_what_a_new_manifest_hides_the_weights_show(
    fault: Callable[[Path, str], None], graph: str, run: Run, bundle: Path
) -> None:
    """Either the rebuilt model is not the one that the bundle was made from, or a file is not the model."""
    fault(bundle, graph)
    relist(bundle)
    result = run("verify", bundle, "--plan", "quick", "--json")
    assert result.code in (1, 2), result
    if result.code == 1:
        rows = json.loads(result.out)["graphs"]
        failed = {row["graph"] for row in rows if not row["passed"]}
        assert graph in failed
        assert "weights" in {f["check"] for row in rows if row["graph"] == graph for f in row["findings"]}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_of_weights_finds_each_fault(fault: Callable[[Path, str], None], bundle: Path) -> None:
    """As on an export: the model is at hand, and no manifest is yet."""
    fault(bundle, "full")
    weights = {name: tensor.numpy() for name, tensor in graphs_of(tiny_model())["full"].weights().items()}
    assert find_weights("onnx", shared_bundle() / "full.onnx", weights) == []
    found = find_weights("onnx", bundle / "full.onnx", weights)
    assert {finding.check for finding in found} == {"weights"}


@pytest.mark.parametrize("fault", IN_A_GRAPH)
def test_values_are_read_from_the_folder_alone(fault: Callable[[Path, str], None], bundle: Path) -> None:
    fault(bundle, "encoder")
    path = bundle / "encoder.onnx"
    with pytest.raises(Exception, match=r".+"):
        [read_values(tensor, path) for tensor in read_model(path)[1]]


@pytest.mark.parametrize("fault", [gone, truncated])
def test_what_onnxruntime_cannot_open_is_said_where_the_files_are_not_checked(
    fault: Callable[[Path, str], None], bundle: Path
) -> None:
    opened = open_bundle(bundle, check=False)
    fault(bundle, "encoder")
    with pytest.raises(BundleError, match=r"encoder\.onnx"):
        opened.graph("encoder")


def _index(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()


DAMAGED = [
    b"",
    b"\xff" * 8,
    _index("nope!"),
    _index("[1]"),
    _index('{"a": "b"}'),
    _index('{"a": {"offset": 0, "bytes": 4}}'),
    _index('{"a": {"offset": -8, "bytes": 4, "sha256": ""}}'),
    _index('{"a": {"offset": 64, "bytes": 4096, "sha256": ""}}'),
]


@pytest.mark.parametrize("data", DAMAGED)
def test_a_damaged_index_is_an_error(data: bytes, tmp_path: Path) -> None:
    (tmp_path / WEIGHTS).write_bytes(data)
    with pytest.raises(BundleError, match=r"weights\.bin is damaged"):
        SharedWeights(tmp_path / WEIGHTS)
