"""The four layouts load to the model that was saved, bit for bit; the same against PyTorch's own Transformer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from checkpoint_support import assert_same, saved
from layout_writers import (
    State,
    classification,
    couplet,
    legacy,
    outputs,
    packed,
    randomised,
    transformer,
    translation,
    tutorial,
    without_attention_bias,
)
from mytx.models import Assumption, config_of, load_checkpoint
from mytx.transformer import MyTransformer

ALL_MODELS = [translation, couplet, classification, transformer]
HALF = ("encoder.layers.0.", "decoder.layers.0.")


def half_packed(state: State) -> State:
    """Each attention block is recognised on its own."""
    some = {name: tensor for name, tensor in state.items() if any(part in name for part in HALF)}
    return {**{name: tensor for name, tensor in state.items() if name not in some}, **packed(some)}


@pytest.mark.parametrize("suffix", [".pt", ".pkl", ".safetensors"])
@pytest.mark.parametrize("layout", [lambda state: state, packed, half_packed])
@pytest.mark.parametrize("make", ALL_MODELS)
def test_current_and_packed_keys(make: Any, layout: Any, suffix: str, tmp_path: Path) -> None:
    model = make()
    assert_same(load_checkpoint(saved(layout(model.state_dict()), tmp_path / f"model{suffix}"), 4), model)


@pytest.mark.parametrize("make", ALL_MODELS)
def test_legacy_keys_have_no_attention_bias_and_zeros_are_recorded(make: Any, tmp_path: Path) -> None:
    model = without_attention_bias(make())
    loaded = load_checkpoint(saved(legacy(model.state_dict()), tmp_path / "model.pt"), 4)
    assert_same(loaded, model)
    zeros = Assumption("query, key and value biases", 0.0, "exact: the legacy layout has none")
    assert zeros in config_of(loaded).assumed


@pytest.mark.parametrize("wrap", [lambda state: state, lambda state: {f"model.{k}": v for k, v in state.items()}])
def test_tutorial_keys(wrap: Any, tmp_path: Path) -> None:
    model = translation()
    assert_same(load_checkpoint(saved(wrap(tutorial(model.state_dict())), tmp_path / "model.pt"), 4), model)


def test_the_first_files_layout_and_any_prefix(tmp_path: Path) -> None:
    model = transformer()
    for prefix in ("my_transformer.", "a.b.core.", "transformer_"):
        state = {prefix + name: tensor for name, tensor in packed(model.state_dict()).items()}
        assert_same(load_checkpoint(saved(state, tmp_path / "model.pt"), 4), model)


@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layout", [lambda state: state, packed])
@pytest.mark.parametrize("make", ALL_MODELS)
def test_biases_and_final_norms_may_be_missing_everywhere(
    make: Any, layout: Any, bias: bool, final_norm: bool, tmp_path: Path
) -> None:
    model = make(bias=bias, final_norm=final_norm)
    assert_same(load_checkpoint(saved(layout(model.state_dict()), tmp_path / "model.pt"), 4), model)


def test_legacy_keys_without_any_bias(tmp_path: Path) -> None:
    model = transformer(bias=False)
    assert_same(load_checkpoint(saved(legacy(model.state_dict()), tmp_path / "model.pt"), 4), model)


def test_nothing_stays_at_an_initial_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is built without values: were a tensor left out, it would be on the meta device."""
    import mytx.models.checkpoints.load as module

    seen: list[Any] = []
    empty = module.empty_model

    def watched(config: Any) -> Any:
        seen.append(empty(config))
        assert all(tensor.is_meta for tensor in seen[-1].state_dict().values())
        return seen[-1]

    monkeypatch.setattr(module, "empty_model", watched)
    for make in ALL_MODELS:
        model = make()
        loaded = load_checkpoint(saved(model.state_dict(), tmp_path / "model.pt"), 4)
        assert loaded is seen[-1]
        everything = [*loaded.parameters(), *loaded.buffers()]
        assert len(everything) == len(model.state_dict())
        assert not any(tensor.is_meta for tensor in everything)
        assert_same(loaded, model)


@pytest.mark.parametrize("make", ALL_MODELS)
def test_a_loaded_model_scripts_and_trains(make: Any, tmp_path: Path) -> None:
    model = load_checkpoint(saved(packed(make().state_dict()), tmp_path / "model.pt"), 4)
    torch.testing.assert_close(outputs(model, run=torch.jit.script(model)), outputs(make()), rtol=1e-6, atol=1e-6)
    outputs(model.train())
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in model.parameters())


class TutorialModel(nn.Module):
    """PyTorch's language translation tutorial, shortened: what its state dict means is decided by this forward."""

    def __init__(self, source: int, target: int, **options: Any) -> None:
        super().__init__()
        self.transformer = nn.Transformer(16, 4, 2, 1, 24, **options)
        self.generator = nn.Linear(16, target)
        self.src_tok_emb = nn.Module()
        self.src_tok_emb.embedding = nn.Embedding(source, 16)
        self.tgt_tok_emb = nn.Module()
        self.tgt_tok_emb.embedding = nn.Embedding(target, 16)
        self.positional_encoding = nn.Module()
        self.positional_encoding.register_buffer("pos_embedding", torch.randn(20, 1, 16))

    def forward(self, src: Tensor, tgt: Tensor, padding: Tensor) -> Tensor:
        table = self.positional_encoding.pos_embedding
        source = self.src_tok_emb.embedding(src.T) * math.sqrt(16) + table[: src.size(1)]
        target = self.tgt_tok_emb.embedding(tgt.T) * math.sqrt(16) + table[: tgt.size(1)]
        mask = torch.ones(tgt.size(1), tgt.size(1)).triu(1).bool()
        output = self.transformer(
            source, target, tgt_mask=mask, src_key_padding_mask=padding, memory_key_padding_mask=padding
        )
        return self.generator(output).transpose(0, 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options",
    [{}, {"activation": "gelu"}, {"norm_first": True}, {"bias": False}, {"layer_norm_eps": 1e-3, "norm_first": True}],
)
def test_a_model_on_top_of_pytorchs_transformer_gives_the_same(options: dict[str, Any], tmp_path: Path) -> None:
    model = randomised(TutorialModel(11, 13, **options))
    told = {name: value for name, value in options.items() if name != "bias"}
    loaded = load_checkpoint(saved(model.state_dict(), tmp_path / "model.pt"), 4, **told)
    expected = outputs(model.double())
    torch.testing.assert_close(outputs(loaded.double()), expected, rtol=1e-12, atol=1e-12)
    for name, value in told.items():
        assert Assumption(name, value, "option") in config_of(loaded).assumed


@pytest.mark.filterwarnings("ignore")
def test_an_encoder_and_decoder_of_pytorch_built_apart_have_no_final_norm(tmp_path: Path) -> None:
    model = nn.Module()
    model.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 24), 2)
    model.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 24), 1)
    model = randomised(model).double()
    torch.save({name: tensor.float() for name, tensor in model.state_dict().items()}, tmp_path / "model.pt")
    loaded = load_checkpoint(tmp_path / "model.pt", 4).double()
    assert isinstance(loaded, MyTransformer)
    assert not loaded.config.final_norm
    src, tgt = torch.randn(5, 2, 16).double(), torch.randn(3, 2, 16).double()
    expected = model.decoder(tgt, model.encoder(src))
    torch.testing.assert_close(loaded(src, tgt), expected, rtol=1e-12, atol=1e-12)


def test_legacy_weights_mean_what_pytorchs_separate_weights_mean(tmp_path: Path) -> None:
    state = legacy(transformer().state_dict())
    loaded = load_checkpoint(saved(state, tmp_path / "model.pt"), 4)
    query, memory = torch.randn(3, 2, 16), torch.randn(5, 2, 16)
    block = "decoder.layers.0.multihead_attn."
    expected, _ = F.multi_head_attention_forward(
        query,
        memory,
        memory,
        16,
        4,
        None,
        None,
        None,
        None,
        False,
        0.0,
        state[block + "out_proj.weight"],
        state[block + "out_proj.bias"],
        use_separate_proj_weight=True,
        q_proj_weight=state[block + "q_proj_weight"],
        k_proj_weight=state[block + "k_proj_weight"],
        v_proj_weight=state[block + "v_proj_weight"],
    )
    output, _ = loaded.decoder.layers[0].multihead_attn(query, memory, memory)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)
