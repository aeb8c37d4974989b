"""What no checkpoint contains: options, the vocabulary and defaults, each recorded with its source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from layout_writers import classification, couplet, outputs, transformer, translation
from mytx.models import Assumption, CheckpointError, Vocabulary, config_of, load_checkpoint

MAKERS = {"translation": translation, "couplet": couplet, "classification": classification, "transformer": transformer}
BARE = {"activation": "relu", "norm_first": False, "layer_norm_eps": 1e-5}
DEFAULTS = {
    "transformer": BARE,
    "classification": {**BARE, "embedding_scale": 4.0, "pad_id": 0, "pooling": "sum"},
    "translation": {**BARE, "embedding_scale": 4.0, "pad_id": 0, "bos_id": 1, "eos_id": 2},
    "couplet": {**BARE, "embedding_scale": 4.0, "pad_id": 0, "bos_id": 1, "eos_id": 2},
}
GIVEN = {
    "activation": "gelu",
    "norm_first": True,
    "layer_norm_eps": 1e-6,
    "embedding_scale": 1.0,
    "pad_id": 3,
    "bos_id": 4,
    "eos_id": 5,
    "pooling": "upstream-last",
}


@pytest.fixture(params=list(MAKERS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def checkpoint(kind: str, folder: Path) -> Path:
    torch.save(MAKERS[kind]().state_dict(), folder / "model.pt")
    return folder / "model.pt"


def test_every_default_is_recorded(kind: str, tmp_path: Path) -> None:
    assumed = config_of(load_checkpoint(checkpoint(kind, tmp_path), 4)).assumed
    assert {item.name: item.value for item in assumed} == DEFAULTS[kind]
    assert {item.source for item in assumed} == {"default"}


def test_every_option_is_recorded_and_takes_effect(kind: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {name: GIVEN[name] for name in DEFAULTS[kind]}
    model = load_checkpoint(checkpoint(kind, tmp_path), 4, **given)
    assert config_of(model).assumed == tuple(Assumption(name, value, "option") for name, value in given.items())
    expected = MAKERS[kind](**given)
    assert config_of(model).with_assumed(()) == config_of(expected)
    assert torch.equal(outputs(model), outputs(expected))


def test_an_option_that_changes_nothing_in_this_kind_is_refused(kind: str, tmp_path: Path) -> None:
    path = checkpoint(kind, tmp_path)
    for name in GIVEN.keys() - DEFAULTS[kind].keys():
        with pytest.raises(CheckpointError, match=f"{name} does not apply to a {kind} model") as caught:
            load_checkpoint(path, 4, **{name: GIVEN[name]})
        assert caught.value.hint == f"leave out --{name.replace('_', '-')}"


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"activation": "tanh"}, "activation must be one of relu, gelu, silu, got 'tanh'", "--activation"),
        ({"layer_norm_eps": 0.0}, r"layer_norm_eps must be in \(0, 1\), got 0", "--layer-norm-eps"),
        ({"embedding_scale": float("inf")}, "embedding_scale must be finite", "--embedding-scale"),
        ({"pad_id": 12}, r"pad_id \(12\) is outside the source vocabulary of 12", "--pad-id"),
        ({"bos_id": -1}, r"bos_id \(-1\) is outside the target vocabulary of 12", "--bos-id"),
        ({"eos_id": 99}, r"eos_id \(99\)", "--eos-id"),
    ],
)
def test_an_option_that_does_not_fit_is_named(options: dict[str, Any], message: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(checkpoint("couplet", tmp_path), 4, **options)
    assert hint in caught.value.hint


def test_an_unknown_pooling_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="pooling must be one of") as caught:
        load_checkpoint(checkpoint("classification", tmp_path), 4, pooling="max")
    assert "--pooling" in caught.value.hint


TOKENS = {"<unk>": 0, "<pad>": 1, "<bos>": 2, "<eos>": 3, "a": 4}


def special(model: Any) -> list[tuple[str, Any, str]]:
    return [(item.name, item.value, item.source) for item in config_of(model).assumed if item.name.endswith("_id")]


def test_a_vocabulary_beside_the_checkpoint_gives_the_special_ids(tmp_path: Path) -> None:
    path = checkpoint("couplet", tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps(TOKENS))
    model = load_checkpoint(path, 4)
    assert special(model) == [("pad_id", 1, "vocab.json"), ("bos_id", 2, "vocab.json"), ("eos_id", 3, "vocab.json")]
    assert (config_of(model).pad_id, config_of(model).bos_id, config_of(model).eos_id) == (1, 2, 3)


def test_an_option_goes_before_the_vocabulary_and_the_vocabulary_before_the_default(tmp_path: Path) -> None:
    path = checkpoint("couplet", tmp_path)
    tokens = {"[PAD]": 5, "</s>": 6, "x": 7}
    expected = [("pad_id", 4, "option"), ("bos_id", 1, "default"), ("eos_id", 6, "the vocabulary")]
    assert special(load_checkpoint(path, 4, pad_id=4, vocab=tokens)) == expected
    (tmp_path / "other.json").write_text(json.dumps(tokens))
    (tmp_path / "vocab.json").write_text("not looked at")
    model = load_checkpoint(path, 4, vocab=tmp_path / "other.json")
    assert special(model)[2] == ("eos_id", 6, "other.json")
    assert special(load_checkpoint(path, 4, vocab=Vocabulary.read(tmp_path / "other.json"))) == special(model)


def test_each_side_may_have_its_vocabulary(tmp_path: Path) -> None:
    path = checkpoint("translation", tmp_path)
    vocab = {"source": {"<pad>": 0, "a": 10}, "target": {"<pad>": 0, "<s>": 11, "</s>": 12}}
    assert [value for _, value, _ in special(load_checkpoint(path, 4, vocab=vocab))] == [0, 11, 12]
    vocab["target"]["<pad>"] = 5
    with pytest.raises(CheckpointError, match="padding is 0 in the source and 5 in the target") as caught:
        load_checkpoint(path, 4, vocab=vocab)
    assert "--pad-id N" in caught.value.hint
    assert [value for _, value, _ in special(load_checkpoint(path, 4, vocab=vocab, pad_id=0))] == [0, 11, 12]


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        ({f"t{n}": n for n in range(14)}, "14 source entries, but the source embedding has 11 rows"),
        ({"a": 11}, "gives 'a' the id 11, but the source embedding has 11 rows"),
        ({"source": {"a": 0}, "target": {str(n): n for n in range(20)}}, "20 target entries.* 13 rows"),
        ({"source": {"a": 0}, "target": {"b": 13}}, "the id 13, but the target embedding has 13 rows"),
        ([1, 2], "is a list"),
        ({"a": "0"}, "gives 'a' the id '0'"),
        ({}, "is empty"),
    ],
)
def test_a_vocabulary_that_does_not_fit_names_both_numbers(vocab: Any, message: str, tmp_path: Path) -> None:
    path = checkpoint("translation", tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(path, 4)


def test_a_malformed_or_missing_vocabulary_file(tmp_path: Path) -> None:
    path = checkpoint("couplet", tmp_path)
    with pytest.raises(CheckpointError, match=r"absent\.json: no such file"):
        load_checkpoint(path, 4, vocab=tmp_path / "absent.json")
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"vocab\.json is not a vocabulary") as caught:
        load_checkpoint(path, 4)
    assert "--vocab FILE" in caught.value.hint


def test_a_classification_model_has_no_target_vocabulary(tmp_path: Path) -> None:
    path = checkpoint("classification", tmp_path)
    vocab = {"source": {"<pad>": 2, "a": 1}, "target": {"good": 0, "bad": 900}}
    assert config_of(load_checkpoint(path, 4, vocab=vocab)).pad_id == 2


def test_a_bare_transformer_has_no_vocabulary(tmp_path: Path) -> None:
    path = checkpoint("transformer", tmp_path)
    (tmp_path / "vocab.json").write_text("not looked at")
    load_checkpoint(path, 4)
    with pytest.raises(CheckpointError, match="no vocabulary") as caught:
        load_checkpoint(path, 4, vocab={"a": 0})
    assert "--vocab" in caught.value.hint
