"""Tensors outside the layers are mapped by their shapes where there is one reading; where there are two, it asks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from checkpoint_support import Save, same_weights
from layout_writers import anonymous, classification, couplet, outputs, translation
from mytx.models import Assumption, CheckpointError, CoupletModel, TranslationModel, config_of, load_checkpoint


def test_what_was_mapped_by_shape_is_recorded(save: Save) -> None:
    loaded = load_checkpoint(save(anonymous(couplet().state_dict())), 4)
    assert isinstance(loaded, CoupletModel)
    found = {(item.name, item.value) for item in config_of(loaded).assumed if item.source == "mapped by shape"}
    assert found == {
        ("positions", "pos_table"),
        ("output_projection", "out.weight"),
        ("source_embedding", "chars.weight"),
        ("target_embedding", "chars.weight"),
    }


def test_known_names_are_not_recorded(save: Save) -> None:
    for make in (translation, couplet, classification):
        loaded = load_checkpoint(save(make().state_dict()), 4)
        assert {item.source for item in config_of(loaded).assumed} == {"default"}


@pytest.mark.parametrize("order", [1, -1])
def test_the_embedding_with_the_projections_rows_is_the_targets(order: int, save: Save) -> None:
    model = translation(11, 13)
    state = anonymous(model.state_dict())
    loaded = load_checkpoint(save(dict(list(state.items())[::order])), 4)
    assert same_weights(loaded, model)
    assumed = config_of(loaded).assumed
    assert Assumption("source_embedding", "first.weight", "mapped by shape") in assumed
    assert Assumption("target_embedding", "second.weight", "mapped by shape") in assumed


def test_two_readings_ask_for_exactly_what_is_missing_and_the_answer_works(save: Save) -> None:
    model = translation(12, 12)
    path = save(anonymous(model.state_dict()))
    with pytest.raises(CheckpointError, match=r"first\.weight \[12, 16\] and second\.weight \[12, 16\]") as caught:
        load_checkpoint(path, 4)
    answer = "--key source_embedding=first.weight --key target_embedding=second.weight"
    assert caught.value.hint == f"say which with {answer} (or the other way round)"
    keys = [word for word in answer.split() if word != "--key"]
    loaded = load_checkpoint(path, 4, keys=keys)
    assert same_weights(loaded, model)
    assert Assumption("source_embedding", "first.weight", "option") in config_of(loaded).assumed
    swapped = load_checkpoint(path, 4, keys={"source_embedding": "second.weight", "target_embedding": "first.weight"})
    assert torch.equal(
        swapped.state_dict()["src_token_embedding.embedding.weight"], model.tgt_token_embedding.embedding.weight
    )
    assert not torch.equal(outputs(swapped), outputs(model))
    one = load_checkpoint(path, 4, keys=["target_embedding=second.weight"])  # leaves one reading
    assert same_weights(one, model)


@pytest.mark.parametrize(
    "shape",
    [lambda pe: pe, lambda pe: pe.transpose(0, 1), lambda pe: pe.squeeze(1)],
)
@pytest.mark.parametrize("name", ["pos_table", "embed.pos_encoding", "a.pe", "wpe.weight", "PositionEncoding.table"])
def test_position_tables_of_any_shape(name: str, shape: Callable[[Tensor], Tensor], save: Save) -> None:
    model = couplet()
    state = anonymous(model.state_dict())
    state[name] = shape(state.pop("pos_table")).clone()
    assert same_weights(load_checkpoint(save(state), 4), model)


def test_a_table_whose_name_says_nothing_is_recognised_by_three_dimensions_only(save: Save) -> None:
    model = translation(11, 13)
    state = anonymous(model.state_dict())
    table = state.pop("pos_table")
    assert same_weights(load_checkpoint(save({**state, "table": table}), 4), model)
    with pytest.raises(CheckpointError, match=r"table \[20, 16\]"):
        load_checkpoint(save({**state, "table": table.squeeze(1)}), 4)
    keys = {"positions": "table", "source_embedding": "first.weight", "target_embedding": "second.weight"}
    assert same_weights(load_checkpoint(save({**state, "table": table.squeeze(1)}), 4, keys=keys), model)


def test_a_single_vector_is_no_position_table(save: Save) -> None:
    state = {**couplet().state_dict(), "cls_token": torch.ones(1, 1, 16)}
    del state["pos_embedding.pe"]
    with pytest.raises(CheckpointError, match=r"unexpected tensor: cls_token \[1, 1, 16\]"):
        load_checkpoint(save(state), 4)


def test_equal_position_tables_are_one_and_different_ones_an_error(save: Save) -> None:
    model = couplet()
    state = anonymous(model.state_dict())
    state["decoder_pos.pe"] = state["pos_table"].transpose(0, 1).clone()
    assert same_weights(load_checkpoint(save(state), 4), model)
    state["decoder_pos.pe"] = state["decoder_pos.pe"] + 1
    with pytest.raises(CheckpointError, match=r"pos_table .* and decoder_pos\.pe") as caught:
        load_checkpoint(save(state), 4)
    assert caught.value.hint.endswith("--key ignore=decoder_pos.pe")
    assert same_weights(load_checkpoint(save(state), 4, keys=["ignore=decoder_pos.pe"]), model)


def test_a_projection_tied_to_the_embedding_and_absent_is_named_by_the_hint(save: Save) -> None:
    model = couplet()
    with torch.no_grad():
        model.classification.weight.copy_(model.token_embedding.embedding.weight)
        model.classification.bias.zero_()
    state = anonymous(model.state_dict())
    del state["out.weight"], state["out.bias"]
    with pytest.raises(CheckpointError, match="no output projection") as caught:
        load_checkpoint(save(state), 4)
    assert caught.value.hint.endswith("--key output_projection=chars.weight")
    loaded = load_checkpoint(save(state), 4, keys=["output_projection=chars.weight"])
    assert same_weights(loaded, model)
    assumed = config_of(loaded).assumed
    assert Assumption("output projection's bias", 0.0, "exact: the checkpoint has none") in assumed
    assert Assumption("output_projection", "chars.weight", "option") in assumed
    weights = [loaded.classification.weight, loaded.token_embedding.embedding.weight]
    assert weights[0].data_ptr() != weights[1].data_ptr()


def test_a_known_embedding_can_be_the_absent_projection_too(save: Save) -> None:
    for make, name in ((couplet, "token_embedding"), (translation, "tgt_token_embedding")):
        model = make()
        with torch.no_grad():
            model.classification.weight.copy_(model.state_dict()[f"{name}.embedding.weight"])
            model.classification.bias.zero_()
        state = model.state_dict()
        del state["classification.weight"], state["classification.bias"]
        with pytest.raises(CheckpointError, match="no output projection") as caught:
            load_checkpoint(save(state), 4)
        key = f"output_projection={name}.embedding.weight"
        assert caught.value.hint.endswith(f"--key {key}")
        assert same_weights(load_checkpoint(save(state), 4, keys=[key]), model)


def test_a_projection_without_a_bias(save: Save) -> None:
    model = translation(11, 13)
    with torch.no_grad():
        model.classification.bias.zero_()
    known, unknown = model.state_dict(), anonymous(model.state_dict())
    del known["classification.bias"], unknown["out.bias"]
    with pytest.raises(CheckpointError, match=r"classification\.bias is missing") as caught:
        load_checkpoint(save(known), 4)
    assert caught.value.hint.endswith("--key output_projection=classification.weight")
    assert same_weights(load_checkpoint(save(known), 4, keys=["output_projection=classification.weight"]), model)
    with pytest.raises(CheckpointError, match="no output projection"):
        load_checkpoint(save(unknown), 4)
    assert same_weights(load_checkpoint(save(unknown), 4, keys=["output_projection=out.weight"]), model)


def test_one_embedding_beside_a_projection_without_a_bias_has_two_readings(save: Save) -> None:
    model = couplet()
    with torch.no_grad():
        model.classification.bias.zero_()
    state = anonymous(model.state_dict())
    del state["out.bias"]
    with pytest.raises(CheckpointError, match=r"chars\.weight, or the output projection's out\.weight") as caught:
        load_checkpoint(save(state), 4, keys=["output_projection=out.weight"])
    assert "--key target_embedding=chars.weight or --key target_embedding=out.weight" in caught.value.hint
    keys = ["output_projection=out.weight", "target_embedding=chars.weight"]
    assert same_weights(load_checkpoint(save(state), 4, keys=keys), model)
    keys = ["output_projection=out.weight", "target_embedding=out.weight"]
    tied = load_checkpoint(save(state), 4, keys=keys)
    assert isinstance(tied, TranslationModel)
    assert torch.equal(tied.classification.weight, tied.tgt_token_embedding.embedding.weight)


def test_two_possible_projections(save: Save) -> None:
    model = couplet()
    state = {**anonymous(model.state_dict()), "extra.weight": torch.ones(7, 16), "extra.bias": torch.ones(7)}
    with pytest.raises(CheckpointError, match=r"out\.weight \[12, 16\], extra\.weight \[7, 16\]") as caught:
        load_checkpoint(save(state), 4)
    assert "--key output_projection=" in caught.value.hint
    keys = ["output_projection=out.weight", "ignore=extra.*"]
    loaded = load_checkpoint(save(state), 4, keys=keys)
    assert same_weights(loaded, model)
    ignored = {item.value for item in config_of(loaded).assumed if item.name == "ignore"}
    assert ignored == {"extra.weight", "extra.bias"}


def test_three_embeddings_ask(save: Save) -> None:
    state = {**anonymous(translation().state_dict()), "third.weight": torch.ones(7, 16)}
    with pytest.raises(CheckpointError, match=r"first\.weight .* second\.weight .* third\.weight"):
        load_checkpoint(save(state), 4)
    keys = {"source_embedding": "first.weight", "target_embedding": "second.weight", "ignore": ["third.weight"]}
    assert same_weights(load_checkpoint(save(state), 4, keys=keys), translation())


def test_no_embedding_at_all(save: Save) -> None:
    model = couplet()
    state = anonymous(model.state_dict())
    del state["chars.weight"]
    with pytest.raises(CheckpointError, match="no embedding") as caught:
        load_checkpoint(save(state), 4)
    assert caught.value.hint.endswith("--key source_embedding=out.weight")
    loaded = load_checkpoint(save(state), 4, keys=["source_embedding=out.weight", "output_projection=out.weight"])
    assert torch.equal(loaded.state_dict()["token_embedding.embedding.weight"], model.classification.weight)
    assert torch.equal(loaded.classification.bias, model.classification.bias)


def test_an_embedding_with_other_rows_cannot_serve_both_sides(save: Save) -> None:
    state = anonymous(translation(11, 13).state_dict())
    del state["second.weight"]
    with pytest.raises(CheckpointError, match=r"first\.weight \[11, 16\] .*out\.weight \[13, 16\]") as caught:
        load_checkpoint(save(state), 4)
    assert "--key target_embedding=NAME" in caught.value.hint
