"""Text to ids and back, special tokens, and errors; all without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mytx.models import CheckpointError, MytxError, Vocabulary, find_vocab
from mytx.models.vocab import special_ids

CHARACTERS = {"<pad>": 0, "<s>": 1, "</s>": 2, " ": 3, "a": 4, "b": 5, "<": 6}
PHONEMES = {"<pad>": 0, "<s>": 1, "</s>": 2, "AH0": 3, "K": 4, "T": 5}


def test_nothing_here_imports_torch() -> None:
    code = (
        "import sys; from mytx.models.vocab import Vocabulary, find_vocab; from mytx.models.errors import MytxError;"
        "from mytx.models import Vocabulary, find_vocab, CheckpointError;"
        "Vocabulary.from_dict({'a': 0}).encode_source('a'); assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_one_vocabulary_serves_both_sides_by_character() -> None:
    vocabulary = Vocabulary.from_dict(CHARACTERS)
    assert vocabulary.source == vocabulary.target == CHARACTERS
    assert vocabulary.encode_source("ab <") == [4, 5, 3, 6]
    assert vocabulary.encode_source("") == []
    assert vocabulary.decode_target([1, 4, 5, 0, 3, 4, 2, 5, 5]) == "ab a"
    assert vocabulary.decode_target([]) == ""


def test_each_side_is_split_in_its_own_way() -> None:
    vocabulary = Vocabulary.from_dict({"source": CHARACTERS, "target": PHONEMES})
    assert vocabulary.encode_source("ba") == [5, 4]
    assert vocabulary.decode_target([1, 4, 3, 5, 2]) == "K AH0 T"
    other = Vocabulary.from_dict({"source": PHONEMES, "target": CHARACTERS})
    assert other.encode_source("  K AH0\tT \n") == [4, 3, 5]
    assert other.decode_target([4, 5]) == "ab"


def test_unknown_tokens_are_unk_or_an_error_that_names_them() -> None:
    vocabulary = Vocabulary.from_dict(CHARACTERS)
    with pytest.raises(MytxError, match="does not have the characters 'x', 'я'") as caught:
        vocabulary.encode_source("axяx")
    assert caught.value.hint
    with pytest.raises(MytxError, match="does not have the words 'Q'"):
        Vocabulary.from_dict(PHONEMES).encode_source("K Q")
    assert Vocabulary.from_dict({**CHARACTERS, "<UNK>": 9}).encode_source("axa") == [4, 9, 4]


def test_an_id_without_a_token_is_shown_as_such() -> None:
    assert Vocabulary.from_dict(PHONEMES).decode_target([4, 77, 5]) == "K <id 77> T"
    assert Vocabulary.from_dict(CHARACTERS).decode_target([4, 77]) == "a<id 77>"


@pytest.mark.parametrize(
    ("tokens", "ids"),
    [
        ({"<pad>": 5, "<s>": 6, "</s>": 7, "<unk>": 8}, {"pad_id": 5, "bos_id": 6, "eos_id": 7, "unk_id": 8}),
        ({"[PAD]": 5, "[BOS]": 6, "[EOS]": 7, "[UNK]": 8}, {"pad_id": 5, "bos_id": 6, "eos_id": 7, "unk_id": 8}),
        ({"<blank>": 5, "<go>": 6, "<eos>": 7}, {"pad_id": 5, "bos_id": 6, "eos_id": 7}),
        ({"<PAD>": 5, "<SOS>": 6, "<EOS>": 7}, {"pad_id": 5, "bos_id": 6, "eos_id": 7}),
        ({"<blank>": 4, "<pad>": 5}, {"pad_id": 5}),
        ({"pad": 0, "s": 1, "a": 2}, {}),
    ],
)
def test_well_known_special_tokens(tokens: dict[str, int], ids: dict[str, int]) -> None:
    assert special_ids(tokens) == ids


def test_through_a_file(tmp_path: Path) -> None:
    for values in (CHARACTERS, {"source": CHARACTERS, "target": PHONEMES}, {"source": 0, "target": 1}):
        vocabulary = Vocabulary.from_dict(values)
        (tmp_path / "vocab.json").write_text(vocabulary.to_json(), encoding="utf-8")
        again = Vocabulary.read(tmp_path / "vocab.json")
        assert (again.source, again.target) == (vocabulary.source, vocabulary.target)
        assert json.loads(vocabulary.to_json()) == values


@given(st.text(alphabet="ab <", max_size=20))
def test_characters_come_back(text: str) -> None:
    vocabulary = Vocabulary.from_dict(CHARACTERS)
    assert vocabulary.decode_target(vocabulary.encode_source(text)) == text


def test_finding(tmp_path: Path) -> None:
    assert find_vocab(tmp_path) is None
    assert find_vocab(tmp_path / "model.pt") is None
    (tmp_path / "vocab.json").write_text("{}")
    assert find_vocab(tmp_path) == find_vocab(tmp_path / "model.pt") == tmp_path / "vocab.json"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a vocabulary"),
        ("[1]", "is a list, not an object"),
        ("3", "is a int, not an object"),
        ("{}", "is empty"),
        ('{"a": 0, "a": 1}', "'a' occurs twice"),
        ('{"a": 0, "b": 0}', "gives 'a' and 'b' the same id 0"),
        ('{"a": -1}', "gives 'a' the id -1"),
        ('{"a": 1.5}', "gives 'a' the id 1.5"),
        ('{"a": true}', "gives 'a' the id True"),
        ('{"0": "a"}', "gives '0' the id 'a'"),
        ('{"source": {}, "target": {"a": 0}}', "source is empty"),
        ('{"source": {"a": 0}, "target": {"a": "x"}}', "target gives 'a' the id 'x'"),
        ('{"model": {"vocab": {"a": 0}}}', "gives 'model' the id"),
        ("[" * 100000, "is not a vocabulary"),
    ],
)
def test_a_malformed_file_says_what_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(text)
    with pytest.raises(CheckpointError, match=message) as caught:
        Vocabulary.read(tmp_path / "vocab.json")
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        Vocabulary.read(tmp_path / "absent.json")
    with pytest.raises(CheckpointError, match="cannot be read"):
        Vocabulary.read(tmp_path)
    (tmp_path / "latin.json").write_bytes(b'{"\xe9": 0}')
    with pytest.raises(CheckpointError, match="is not a vocabulary"):
        Vocabulary.read(tmp_path / "latin.json")


def test_text_of_any_kind_in_a_real_vocabulary() -> None:
    tokens: dict[str, Any] = {"<pad>": 0, "ё": 1, "'": 2, "[": 3, "]": 4, ">": 5}
    assert Vocabulary.from_dict(tokens).encode_source("ё'[]>") == [1, 2, 3, 4, 5]
