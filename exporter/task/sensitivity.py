"""Which layers cost most: how far the model's distributions move when one layer alone is in integers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...models.sequence import SequenceModel
from ..bundle.generation import padded
from ..formats.quantisation import Rule
from ..graphs.parameters import named_tensors
from ..graphs.precision import memory_of
from ..parity.quantised import RoundedProducts, dequantised
from ..parity.reference import threads_for
from ..parity.task_report import Layer

POSITIONS = 512  # of targets, at most: each layer is a run of all of them
VALUES = 2**26  # in the distributions at these
PROJECTION = re.compile(r"\b[qkv]_proj\b")

Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]  # ids of a source and of its result


def layers_of(model: SequenceModel, rule: Rule) -> list[Layer]:
    """The layers that ``rule`` quantises, with nothing measured.

    Files multiply by query, key and value of an attention at once, so these are one layer; and so are weights that
    share their memory.
    """
    known = named_tensors(model)
    groups: dict[object, list[str]] = {}
    for name in model.state_dict():
        if rule.takes(name, known[name].shape):
            projection = PROJECTION.sub("{q,k,v}_proj", name)
            groups.setdefault(projection if projection != name else memory_of(known[name]), []).append(name)
    return [
        Layer(
            key if isinstance(key, str) else names[0], tuple(names), saved=_saved([known[name] for name in names], rule)
        )
        for key, names in groups.items()
    ]


def sensitivities(
    model: SequenceModel, rule: Rule, pairs: Pairs, told: Callable[[int, int], None] = lambda done, total: None
) -> tuple[Layer, ...]:
    """The layers of ``model``, each with its divergence; that with the largest for its size first.

    Args:
        model: in float32 and evaluation mode.
        rule: how matrices are quantised.
        pairs: sources and what the model makes of them in float32. Some are left out if there are many.
        told: how many layers are done, and of how many.
    """
    layers = layers_of(model, rule)
    names = frozenset(name for layer in layers for name in layer.weights)
    inputs, real = _inputs(model, pairs)
    right = _distributions(model, inputs, real)
    found = []
    for done, layer in enumerate(layers):
        told(done, len(layers))
        alone = replace(rule, kept=names.difference(layer.weights))
        with dequantised(model, alone), RoundedProducts(alone, model):
            other = _distributions(model, inputs, real)
        divergence = (right.exp() * (right - other)).sum(dim=-1).mean()
        found.append(replace(layer, divergence=max(0.0, float(divergence))))
    return tuple(sorted(found, key=lambda layer: -layer.divergence / layer.saved))


def fewest(most: int, holds: Callable[[int], bool]) -> int:
    """A small number from 0 to ``most`` that ``holds``, and the least if with each all greater ones do. Small ones are
    tried first: sentences are few, so chance has a part in which numbers hold. ``most`` is not tried.
    """
    if most == 0 or holds(0):
        return 0
    low, high = 0, 1  # low does not hold
    while high < most and not holds(high):
        low, high = high, min(most, 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _inputs(model: SequenceModel, pairs: Pairs) -> tuple[tuple[Tensor, ...], Tensor]:
    """The arguments of the model for some of the pairs, evenly chosen, and which positions of the targets are real."""
    config = model.config
    room = max(1, min(POSITIONS, VALUES // config.tgt_vocab_size))
    step = max(1, sum(len(target) + 1 for _, target in pairs) // room)
    sources, results = zip(*pairs[::step], strict=True)
    # What the decoder has read when it gives the last token: of a result as long as can be that is not the whole.
    targets = [(config.bos_id, *result)[: config.max_length] for result in results]
    (src, src_padding), (tgt, tgt_padding) = (padded(rows, config.pad_id) for rows in (sources, targets))
    return tuple(map(torch.from_numpy, (src, tgt, src_padding, tgt_padding))), ~torch.from_numpy(tgt_padding)


def _distributions(model: SequenceModel, inputs: Collection[Tensor], real: Tensor) -> Tensor:
    """The logarithms of the probabilities of the next token, ``[positions, V]``."""
    with torch.inference_mode(), threads_for(model):
        return torch.log_softmax(model(*inputs)[real], dim=-1)


def _saved(tensors: Sequence[Tensor], rule: Rule) -> int:
    """Bytes that integers and scales save."""
    total = 0
    for tensor in {memory_of(tensor): tensor for tensor in tensors}.values():
        quantised = rule.quantise(tensor.detach().numpy(), False)
        total += tensor.nbytes - quantised.values.nbytes - quantised.scales.nbytes
    return max(1, total)
