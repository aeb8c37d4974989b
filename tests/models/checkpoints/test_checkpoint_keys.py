"""``--key`` gives tensors names or ignores them; a key that does not work is an error."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from checkpoint_support import Save, same_weights
from layout_writers import anonymous, classification, couplet, packed, transformer
from mytx.models import Assumption, CheckpointError, config_of, load_checkpoint


def test_our_own_names_can_be_given_to_any_tensor(save: Save) -> None:
    model = couplet()
    names = {
        "my_transformer.encoder.norm.weight": "last.gain",
        "my_transformer.encoder.norm.bias": "last.offset",
        "my_transformer.encoder.layers.1.self_attn.q_proj.bias": "q1",
        "token_embedding.embedding.weight": "chars",
    }
    state = {names.get(name, name): tensor for name, tensor in model.state_dict().items()}
    loaded = load_checkpoint(save(state), 4, keys=names)
    assert same_weights(loaded, model)
    assert Assumption("my_transformer.encoder.norm.weight", "last.gain", "option") in config_of(loaded).assumed
    bare = transformer()
    state = {names.get(f"my_transformer.{name}", name): tensor for name, tensor in bare.state_dict().items()}
    keys = [f"{ours}={theirs}" for ours, theirs in names.items() if theirs != "chars"]
    assert same_weights(load_checkpoint(save(state), 4, keys=keys), bare)


def test_names_may_be_given_as_the_file_has_them(save: Save) -> None:
    model = couplet()
    state = {f"module.{name}": tensor for name, tensor in anonymous(model.state_dict()).items()}
    assert same_weights(load_checkpoint(save(state), 4, keys=["source_embedding=module.chars.weight"]), model)


@pytest.mark.parametrize(
    ("keys", "message", "hint"),
    [
        (["chars.weight"], "--key expects NAME=KEY, got 'chars.weight'", "--key source_embedding="),
        (["=chars.weight"], "--key expects NAME=KEY", "--key source_embedding="),
        (["source_embedding="], "--key expects NAME=KEY", "--key source_embedding="),
        ("nonsense", "--key expects NAME=KEY, got 'nonsense'", "--key source_embedding="),
        (["embedding=chars.weight"], "--key does not know the name 'embedding'", "source_embedding, target_embedding"),
        (["encoder.layers.0.q=chars.weight"], "--key does not know", "my_transformer.encoder.norm.weight"),
        (["source_embedding=char.weight"], "--key .* no tensor char.weight", "did you mean chars.weight"),
        ({"ignore": ["nothing"]}, "--key ignore=nothing: the checkpoint has no tensor", "it has"),
        ({"ignore": "nothing.*"}, "--key ignore=nothing", "it has"),
        (
            ["source_embedding=chars.weight", "source_embedding=out.weight"],
            "--key names source_embedding twice: chars.weight and out.weight",
            "one of them",
        ),
        (
            ["output_projection=out.weight", "classification.weight=chars.weight"],
            "--key names classification.weight twice",
            "one of them",
        ),
        (["source_embedding=chars.weight", "ignore=chars.*"], "--key uses chars.weight as source_embedding", "one of"),
        (["ignore=out.*", "ignore=out.weight"], "--key ignore=out.weight: the checkpoint has no tensor", ""),
    ],
)
def test_a_key_that_does_not_work_names_the_option(keys: Any, message: str, hint: str, save: Save) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(save(anonymous(couplet().state_dict())), 4, keys=keys)
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint


def test_a_key_of_another_shape_names_both(save: Save) -> None:
    path = save(anonymous(couplet().state_dict()))
    keys = ["encoder.norm.bias=pos_table"]
    with pytest.raises(CheckpointError, match=r"unexpected tensor: core\.encoder\.norm\.bias"):
        load_checkpoint(path, 4, keys=keys)
    with pytest.raises(CheckpointError, match=r"pos_table gives .*encoder\.norm\.bias .*\[20, 1, 16\], .* \[16\]"):
        load_checkpoint(path, 4, keys=[*keys, "ignore=core.encoder.norm.bias"])


def test_buffers_that_a_model_has_no_use_for_must_be_ignored_knowingly(save: Save) -> None:
    model = couplet()
    extra = {
        "tgt_mask": torch.ones(8, 8),
        "bn.num_batches_tracked": torch.tensor(3),
        "core.encoder.layers.0.x": torch.ones(16, 16),
    }
    state = {**anonymous(model.state_dict()), **extra}
    with pytest.raises(CheckpointError, match=r"has 3 unexpected tensors: tgt_mask \[8, 8\]") as caught:
        load_checkpoint(save(state), 4)
    assert caught.value.hint.endswith("--key ignore=tgt_mask")
    assert same_weights(load_checkpoint(save(state), 4, keys=[f"ignore={name}" for name in extra]), model)


def test_a_second_transformer_in_the_file_must_be_ignored_knowingly(save: Save) -> None:
    model = couplet()
    teacher = {f"teacher.{name}": tensor for name, tensor in packed(model.state_dict()).items()}
    with pytest.raises(CheckpointError, match=r"2 encoders: .*teacher"):
        load_checkpoint(save({**model.state_dict(), **teacher}), 4)
    loaded = load_checkpoint(save({**model.state_dict(), **teacher}), 4, keys=["ignore=teacher.*"])
    assert same_weights(loaded, model)


def test_a_classification_models_embedding_may_have_any_name(save: Save) -> None:
    model = classification()
    state = model.state_dict()
    state["words.weight"] = state.pop("src_token_embedding.embedding.weight")
    loaded = load_checkpoint(save(state), 4)
    assert same_weights(loaded, model)
    assert Assumption("source_embedding", "words.weight", "mapped by shape") in config_of(loaded).assumed
    state["more.weight"] = torch.ones(3, 16)
    with pytest.raises(CheckpointError, match=r"words\.weight \[12, 16\], more\.weight \[3, 16\]") as caught:
        load_checkpoint(save(state), 4)
    assert caught.value.hint.endswith("--key source_embedding=words.weight")
