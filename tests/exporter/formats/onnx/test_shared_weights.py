"""``weights.bin`` holds each weight once for all ONNX files of a bundle, and such a bundle works like any other."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from bundles import LETTERS, SOUNDS, arrays_of, relist, shared_bundle, tiny_model
from cli_support import Run, assert_refused
from mytx.exporter import OptionError, export_bundle, open_bundle
from mytx.exporter.bundle.rebuild import rebuild
from mytx.exporter.formats.onnx import shared_weights
from mytx.exporter.formats.onnx.shared_weights import PAGE, SMALLEST, WEIGHTS, SharedWeights, shares, write_weights
from mytx.exporter.formats.onnx.storage import read_model
from mytx.exporter.formats.table import PLAIN
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.models import CoupletModel, Model, TranslationModel
from mytx.models.vocab import Vocabulary


def tensors_of(path: Path) -> dict[str, onnx.TensorProto]:
    """Those of a file that are in weights.bin."""
    return {tensor.name: tensor for tensor in read_model(path)[1] if tensor.external_data}


def place_of(tensor: onnx.TensorProto) -> dict[str, str]:
    return {item.key: item.value for item in tensor.external_data}


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
