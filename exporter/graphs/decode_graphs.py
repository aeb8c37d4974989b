"""The graphs that decode with a KV cache: one step, the prefill before the first step, and the whole search."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ...models import CoupletModel, Generator, TranslationModel
from ...models.search import DEFAULT_MAX_LENGTH
from ..contracts.contract import Axis, Contract, TensorSpec
from .graph import BATCH, SOURCE, Graph, ids_spec, padding_spec
from .modules import Cross, Prefill, Search, Step

BEAMS = Axis("beams", traced=3)
PAST = Axis("past", minimum=0, traced=4)

Scopes = tuple[str, ...]


def decode_graphs(
    model: TranslationModel | CoupletModel, source: Axis, encoder_scopes: Scopes, decoder_scopes: Scopes
) -> dict[str, Graph]:
    """The graphs of ``model`` that decode with a KV cache, by name.

    Args:
        model: a model with at least one decoder layer.
        source: the axis of source positions.
        encoder_scopes, decoder_scopes: prefixes of the state-dict names of the encoder's and the decoder's weights.
    """
    config = model.config
    ids = {"pad": config.pad_id, "bos": config.bos_id, "eos": config.eos_id}
    past = replace(PAST, maximum=config.max_length - 1)
    src = ids_spec("src", (BATCH, source), config.src_vocab_size)
    padding = padding_spec("src_key_padding_mask", (BATCH, source))
    tgt = ids_spec("tgt", (BATCH, BEAMS), config.tgt_vocab_size)
    cross = _caches(model, "cross", "of the memory", (BATCH,), source)
    both = (*encoder_scopes, *decoder_scopes)
    logits = "scores of the next id, before softmax"

    def graph(name: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> Contract:
        return Contract(name, inputs, outputs, "batch first", ids)

    step = graph(
        "step",
        (tgt, padding, *cross, *_caches(model, "past", "of the positions before", (BATCH, BEAMS), past)),
        (
            TensorSpec("logits", "float32", (BATCH, BEAMS, config.tgt_vocab_size), logits),
            *_caches(model, "present", "of this position and those before", (BATCH, BEAMS), replace(past, plus=1)),
        ),
    )
    prefill = graph(
        "prefill",
        (src, padding),
        (
            TensorSpec("logits", "float32", (BATCH, 1, config.tgt_vocab_size), logits),
            *cross,
            *_caches(model, "past", "of the start id", (BATCH, 1), 1),
        ),
    )
    numbers = _numbers(model)
    greedy = tuple(spec for spec in numbers if spec.name in ("max_length", "min_length", "length_penalty"))
    found = (Axis("batch"), Axis("hypotheses"))
    results = (
        TensorSpec("tokens", "int64", (*found, Axis("length")), "ids without start and end, then padding ids", "ids"),
        TensorSpec("lengths", "int64", found, "how many of the tokens are no padding"),
        TensorSpec("scores", "float32", found, "log-probability / (length with the end) ** length_penalty"),
    )
    return {
        # Keys and values of the memory are inputs, so the step needs no weights to compute them.
        "step": Graph(
            step, Step(model), decoder_scopes, without=(".multihead_attn.k_proj.", ".multihead_attn.v_proj.")
        ),
        "prefill": Graph(prefill, Prefill(model), both),
        "greedy": Graph(graph("greedy", (src, padding, *greedy), results), Search(model), both),
        "generate": Graph(
            graph("generate", (src, padding, *numbers), results),
            Search(model),
            both,
            scripted=partial(Generator, model),
        ),
    }


def cross_graph(step: Graph) -> Graph:
    """The graph from the memory to its keys and values: the part of prefill between the encoder and the first step."""
    model = step.module.model
    source = replace(SOURCE, maximum=model.config.max_length)
    width = model.my_transformer.d_model
    memory = TensorSpec("memory", "float32", (BATCH, source, width), "the encoder's output")
    inputs = (memory, padding_spec("src_key_padding_mask", (BATCH, source)))
    contract = Contract("cross", inputs, _caches(model, "cross", "of the memory", (BATCH,), source), "batch first")
    return Graph(contract, Cross(model), step.scopes)


def _caches(
    model: TranslationModel | CoupletModel, name: str, what: str, first: tuple[Axis | int, ...], length: Axis | int
) -> tuple[TensorSpec, ...]:
    """``<name>_key_0``, ``<name>_value_0`` and so on, a pair for each layer; keys are transposed.

    Args:
        model: the model.
        name: first part of the names: ``cross``, ``past`` or ``present``.
        what: of which positions, for the description.
        first: the dimensions before the heads.
        length: the dimension of positions.
    """
    heads = model.my_transformer.nhead
    size = model.my_transformer.d_model // heads
    specs: list[TensorSpec] = []
    for layer in range(len(model.my_transformer.decoder.layers)):
        key, value = (heads, size, length), (heads, length, size)
        specs.append(TensorSpec(f"{name}_key_{layer}", "float32", (*first, *key), f"keys {what}, layer {layer}"))
        specs.append(TensorSpec(f"{name}_value_{layer}", "float32", (*first, *value), f"values {what}, layer {layer}"))
    return tuple(specs)


def _numbers(model: TranslationModel | CoupletModel) -> tuple[TensorSpec, ...]:
    """The options of a search, in the order of :class:`mytx.models.Generator` and with its defaults."""
    positions, most = model.config.max_length, max(1, model.config.tgt_vocab_size // 2)
    rows = (
        ("max_length", "int64", min(DEFAULT_MAX_LENGTH, positions), positions, f"steps, 1 to {positions}"),
        ("min_length", "int64", 0, 0, "tokens before the end is allowed, 0 to max_length"),
        ("num_beams", "int64", 1, most, f"beams, 1 to {most}"),
        ("length_penalty", "float32", 1.0, 0, "0 or more: scores are divided by length ** length_penalty"),
        ("num_hypotheses", "int64", 1, most, "results of each sentence, 1 to num_beams"),
    )
    return tuple(
        TensorSpec(name, dtype, (), f"{meaning}; what is outside is brought into it", "number", limit, default=default)
        for name, dtype, default, limit, meaning in rows
    )
