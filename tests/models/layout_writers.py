"""Tiny models with random weights, and writers of the key layouts that checkpoints come in."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from mytx.models import ClassificationModel, CoupletModel, TranslationModel
from mytx.transformer import MyTransformer

SIZES: dict[str, Any] = {
    "d_model": 16,
    "nhead": 4,
    "num_encoder_layers": 2,
    "num_decoder_layers": 1,
    "dim_feedforward": 24,
    "max_length": 20,
}
State = dict[str, Tensor]


def randomised(model: nn.Module, seed: int = 0) -> Any:
    """``model`` in evaluation mode with every parameter random, biases and norms too: nothing hides behind a 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + (parameter.dim() == 1) * 0.5)
    return model.eval()


def translation(source: int = 11, target: int = 13, **options: Any) -> TranslationModel:
    return randomised(TranslationModel(source, target, **{**SIZES, **options}))


def couplet(vocab: int = 12, **options: Any) -> CoupletModel:
    return randomised(CoupletModel(vocab, **{**SIZES, **options}))


def classification(vocab: int = 12, **options: Any) -> ClassificationModel:
    sizes = {**SIZES, "dim_classification": 10, "num_classification": 5, **options}
    del sizes["num_decoder_layers"]
    return randomised(ClassificationModel(vocab, **sizes))


def transformer(**options: Any) -> MyTransformer:
    sizes = {**SIZES, **options}
    del sizes["max_length"]
    return randomised(MyTransformer(**sizes))


def outputs(model: nn.Module, run: Any = None) -> Tensor:
    """What ``run``, by default ``model`` itself, makes of fixed inputs of the model's kind, with padding."""
    run = run or model
    generator = torch.Generator().manual_seed(9)
    dtype = next(model.parameters()).dtype
    padding = torch.tensor([[False, False, False, True], [False] * 4, [False, True, True, True]])
    with torch.no_grad():
        if isinstance(model, MyTransformer):
            src = torch.randn(4, 3, model.d_model, generator=generator, dtype=torch.float64).to(dtype)
            tgt = torch.randn(5, 3, model.d_model, generator=generator, dtype=torch.float64).to(dtype)
            return run(src, tgt, tgt_mask=model.generate_square_subsequent_mask(5), src_key_padding_mask=padding)
        src = torch.randint(0, 11, (3, 4), generator=generator)
        if isinstance(model, ClassificationModel):
            return run(src, padding)
        return run(src, torch.randint(0, 11, (3, 5), generator=generator), padding)


def packed(state: State) -> State:
    """The keys of ``torch.nn.Transformer``: query, key and value in one tensor."""
    result: State = {}
    for name, tensor in state.items():
        match = re.fullmatch(r"(.*)\.([qkv])_proj\.(weight|bias)", name)
        if match is None:
            result[name] = tensor
        elif match[2] == "q":
            three = [state[f"{match[1]}.{letter}_proj.{match[3]}"] for letter in "qkv"]
            result[f"{match[1]}.in_proj_{match[3]}"] = torch.cat(three)
    return result


def legacy(state: State) -> State:
    """The keys of the first version: raw projections without a bias."""
    result: State = {}
    for name, tensor in state.items():
        if not re.search(r"[qkv]_proj\.bias$", name):
            result[re.sub(r"([qkv]_proj)\.weight$", r"\1_weight", name)] = tensor
    return result


def without_attention_bias(model: Any) -> Any:
    """``model`` with zeros for the query, key and value biases, which the legacy layout cannot hold."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if re.search(r"[qkv]_proj\.bias$", name):
                parameter.zero_()
    return model


TUTORIAL = {
    "my_transformer.": "transformer.",
    "src_token_embedding.": "src_tok_emb.",
    "tgt_token_embedding.": "tgt_tok_emb.",
    "pos_embedding.pe": "positional_encoding.pos_embedding",
    "classification.": "generator.",
}


def renamed(state: State, prefixes: dict[str, str]) -> State:
    """``state`` with the prefixes of its names replaced."""
    result: State = {}
    for name, tensor in state.items():
        old = next((old for old in prefixes if name.startswith(old)), "")
        result[prefixes.get(old, "") + name.removeprefix(old)] = tensor
    return result


def tutorial(state: State) -> State:
    """The names of PyTorch's translation tutorial."""
    return packed(renamed(state, TUTORIAL))


ANONYMOUS = {
    "my_transformer.": "core.",
    "src_token_embedding.embedding.": "first.",
    "tgt_token_embedding.embedding.": "second.",
    "token_embedding.embedding.": "chars.",
    "pos_embedding.pe": "pos_table",
    "classification.": "out.",
}


def anonymous(state: State) -> State:
    """Names that nobody knows."""
    return packed(renamed(state, ANONYMOUS))
