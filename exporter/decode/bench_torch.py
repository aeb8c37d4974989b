"""The benchmark's ways to decode in PyTorch, with the model rebuilt from the bundle."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...models import CachedDecoder, CoupletModel, Generator, TranslationModel
from ..bundle.generation import SearchOptions
from ..bundle.open import Bundle
from ..bundle.rebuild import rebuild
from ..cases.case import Array


def torch_ways(
    bundle: Bundle, src: Array, padding: Array, options: SearchOptions, threads: int
) -> dict[tuple[str, int], Callable[[], Array]]:
    """The ways to decode in PyTorch, by name and number of beams.

    They are: the whole prefix in each step, one position with a KV cache in each step, and beam search with a KV cache.
    """
    model = rebuild(bundle).model
    assert isinstance(model, (TranslationModel, CoupletModel))
    model.eval()
    steps, beams = options.max_length, options.num_beams
    assert steps is not None
    if threads:
        torch.set_num_threads(threads)
    source, mask = torch.from_numpy(src), torch.from_numpy(padding)
    cached, generator = CachedDecoder(model), Generator(model)

    def by_prefix() -> Array:
        return decode_prefix(model, source, mask, steps)

    def by_cache() -> Array:
        return decode_cached(model, cached, source, mask, steps)

    def by_search() -> Array:
        tokens, _, _ = generator(source, mask, steps, steps, beams)
        return tokens[:, 0].numpy()

    ways: dict[tuple[str, int], Callable[[], Array]] = {
        ("PyTorch, no cache", 1): by_prefix,
        ("PyTorch, cached", 1): by_cache,
    }
    return ways | ({("PyTorch, cached", beams): by_search} if beams > 1 else {})


@torch.inference_mode()
def decode_prefix(
    model: TranslationModel | CoupletModel, src: torch.Tensor, padding: torch.Tensor, steps: int
) -> Array:
    """Decode greedily without a cache: ``src [N, S]``, ``padding [N, S]`` -> tokens ``[N, steps]``.

    Each step runs the model on the whole prefix. The end token is never chosen.
    """
    memory = model.encode(src, padding)
    tgt = src.new_full((len(src), 1), model.config.bos_id)
    for _ in range(steps):
        logits = model.decode(tgt, memory, None, padding)[:, -1]
        logits[:, model.config.eos_id] = -torch.inf
        tgt = torch.cat([tgt, logits.argmax(dim=1, keepdim=True)], dim=1)
    return tgt[:, 1:].numpy()


@torch.inference_mode()
def decode_cached(
    model: TranslationModel | CoupletModel,
    decoder: CachedDecoder,
    src: torch.Tensor,
    padding: torch.Tensor,
    steps: int,
) -> Array:
    """Decode greedily with a KV cache; inputs and result as for :func:`decode_prefix`."""
    cross, mask = decoder.cross(model.encode(src, padding), padding), decoder.additive(padding)
    past, tgt = decoder.empty(len(src)), src.new_full((len(src), 1), model.config.bos_id)
    found = []
    for _ in range(steps):
        logits, past = decoder.advance(tgt, past, cross, mask)
        logits[:, model.config.eos_id] = -torch.inf
        tgt = logits.argmax(dim=1, keepdim=True)
        found.append(tgt)
    return torch.cat(found, dim=1).numpy()
