"""Our translation and couplet models as CTranslate2 models: the same weights in another engine, to compare with.

Built with CTranslate2's specification API (https://opennmt.net/CTranslate2/), since it has no converter for these.
A token is the decimal number of its id, on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import torch
from ctranslate2.specs import common_spec, transformer_spec
from torch import nn

from mytx.models.cached import fused
from mytx.models.sequence import SequenceModel, source_embedding, target_embedding
from mytx.transformer import MyMultiheadAttention

ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "silu": common_spec.Activation.SWISH,
}


def save_ct2(model: SequenceModel, folder: str | Path) -> Path:
    """Write ``model`` to ``folder`` as ``ctranslate2.Translator`` reads it, over what is there.

    Args:
        model: a translation or couplet model with at least one encoder and one decoder layer.
        folder: made if it does not exist.

    Raises:
        ValueError: for a model without layers on one side, which CTranslate2 cannot represent.
    """
    config, architecture = model.config, model.config.transformer
    layers = (architecture.num_encoder_layers, architecture.num_decoder_layers)
    if min(layers) < 1:
        raise ValueError(
            f"the model has {layers[0]} encoder and {layers[1]} decoder layers, CTranslate2 needs 1 of each"
        )
    # The specification has final norms for pre-norm models only: built as one, then told that it is not.
    spec = transformer_spec.TransformerSpec.from_config(
        layers,
        architecture.nhead,
        pre_norm=True,
        no_final_norm=not architecture.final_norm,
        activation=ACTIVATIONS[architecture.activation],
    )
    stack: Any = model.my_transformer
    embeddings = (source_embedding(model), target_embedding(model))
    for side, module, embedding in zip(
        (spec.encoder, spec.decoder), (stack.encoder, stack.decoder), embeddings, strict=True
    ):
        side.pre_norm = architecture.norm_first
        side.scale_embeddings = np.float32(embedding.scale)
        side.position_encodings.encodings = array(model.pos_embedding.pe[:, 0])
        if architecture.final_norm:
            _norm(side.layer_norm, module.norm)
    spec.encoder.embeddings[0].weight = array(embeddings[0].embedding.weight)
    spec.decoder.embeddings.weight = array(embeddings[1].embedding.weight)
    _linear(spec.decoder.projection, model.classification)
    for target, layer in zip(spec.encoder.layer, stack.encoder.layers, strict=True):
        _attention(target.self_attention, layer.self_attn, layer.norm1, own=True)
        _feed_forward(target.ffn, layer, layer.norm2)
    for target, layer in zip(spec.decoder.layer, stack.decoder.layers, strict=True):
        _attention(target.self_attention, layer.self_attn, layer.norm1, own=True)
        _attention(target.attention, layer.multihead_attn, layer.norm2, own=False)
        _feed_forward(target.ffn, layer, layer.norm3)

    source, target_words = vocabulary(config.src_vocab_size), vocabulary(config.tgt_vocab_size)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target_words)
    spec.config.add_source_bos = False
    spec.config.add_source_eos = False
    spec.config.unk_token = str(config.pad_id)  # it must have one that is in the vocabulary; nothing here is unknown
    spec.config.bos_token = str(config.bos_id)
    spec.config.eos_token = str(config.eos_id)
    spec.config.decoder_start_token = str(config.bos_id)
    spec.config.layer_norm_epsilon = architecture.layer_norm_eps
    spec.validate()
    spec.optimize()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*_vocabulary.json"):  # one for both sides has another name
        old.unlink()
    spec.save(str(folder))
    return folder


def vocabulary(size: int) -> list[str]:
    """The tokens: the ids as text."""
    return [str(number) for number in range(size)]


def array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """As float32, in memory of its own."""
    return tensor.detach().float().contiguous().numpy()


def _linear(target: Any, linear: nn.Module) -> None:
    assert isinstance(linear, nn.Linear)
    target.weight = array(linear.weight)
    if linear.bias is not None:
        target.bias = array(linear.bias)


def _norm(target: Any, norm: nn.LayerNorm) -> None:
    target.gamma = array(norm.weight)
    target.beta = array(torch.zeros_like(norm.weight) if norm.bias is None else norm.bias)


def _attention(target: Any, attention: MyMultiheadAttention, norm: nn.LayerNorm, own: bool) -> None:
    """Query, key and value in one where it is ``own`` attention, else key and value."""
    parts = [[attention.q_proj, attention.k_proj, attention.v_proj]]
    if not own:
        parts = [[attention.q_proj], [attention.k_proj, attention.v_proj]]
    for linear, projections in zip(target.linear, parts, strict=False):
        weight, bias = fused(projections)
        linear.weight = array(weight)
        if bias is not None:
            linear.bias = array(bias)
    _linear(target.linear[-1], attention.out_proj)
    _norm(target.layer_norm, norm)


def _feed_forward(target: Any, layer: Any, norm: nn.LayerNorm) -> None:
    _linear(target.linear_0, layer.linear1)
    _linear(target.linear_1, layer.linear2)
    _norm(target.layer_norm, norm)


@dataclass(frozen=True)
class Result:
    """A result for one sentence: its ids without the end token, and its score."""

    ids: list[int]
    score: float


def translate_ct2(translator: ctranslate2.Translator, sources: list[list[int]], **options: Any) -> list[list[Result]]:
    """The results for each of ``sources`` (ids without padding), best first.

    ``options`` are those of ``Generator.forward`` by its names and with its defaults; all in one batch.
    """
    found = translator.translate_batch(
        [[str(number) for number in source] for source in sources],
        beam_size=options.get("num_beams", 1),
        num_hypotheses=options.get("num_hypotheses", 1),
        length_penalty=options.get("length_penalty", 1.0),
        max_decoding_length=options.get("max_length", 256),
        min_decoding_length=options.get("min_length", 0),
        max_input_length=0,
        return_scores=True,
    )
    return [
        [Result([int(token) for token in ids], score) for ids, score in zip(row.hypotheses, row.scores, strict=True)]
        for row in found
    ]


def open_ct2(folder: str | Path, threads: int = 1, compute_type: str = "float32") -> ctranslate2.Translator:
    """The model in ``folder`` on the CPU."""
    return ctranslate2.Translator(
        str(folder), device="cpu", intra_threads=threads, inter_threads=1, compute_type=compute_type
    )
