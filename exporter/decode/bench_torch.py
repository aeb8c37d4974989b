"""What a benchmark runs in PyTorch: the model of a bundle, rebuilt from it."""

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
    """Ways to decode, by name and beams: the whole prefix in each step, one position in each, and the search."""
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
    """``src [N, S]``, ``padding [N, S]`` -> tokens ``[N, steps]`` by the model as it was trained; the end is never
    taken.
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
    """The same with the keys and values of the past kept."""
    cross, mask = decoder.cross(model.encode(src, padding), padding), decoder.additive(padding)
    past, tgt = decoder.empty(len(src)), src.new_full((len(src), 1), model.config.bos_id)
    found = []
    for _ in range(steps):
        logits, past = decoder.advance(tgt, past, cross, mask)
        logits[:, model.config.eos_id] = -torch.inf
        tgt = logits.argmax(dim=1, keepdim=True)
        found.append(tgt)
    return torch.cat(found, dim=1).numpy()
