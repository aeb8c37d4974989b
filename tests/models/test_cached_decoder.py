"""The cached decoder: N steps equal the full decoder at every position, for every model and padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from layout_writers import couplet, translation
from mytx.models import CachedDecoder, TranslationModel

OPTIONS: dict[str, dict[str, Any]] = {
    "norm last": {},
    "norm first": {"norm_first": True},
    "no final norm": {"final_norm": False},
    "norm first, no final norm": {"norm_first": True, "final_norm": False},
    "no bias": {"bias": False},
    "gelu": {"activation": "gelu"},
    "silu, one head": {"activation": "silu", "nhead": 1},
    "head of width one": {"nhead": 16},
    "scale, epsilon, dropout": {"embedding_scale": 0.7, "layer_norm_eps": 1e-3, "dropout": 0.5},
    "three layers": {"num_decoder_layers": 3},
}
LIMITS = {torch.float64: 1e-12, torch.float32: 2e-5}


def inputs(batch: int, source: int, target: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * batch + 10 * source + target)
    return (
        torch.randint(0, 11, (batch, source), generator=generator),
        torch.randint(0, 11, (batch, target), generator=generator),
    )


def paddings(batch: int, source: int) -> dict[str, Tensor]:
    """Every kind: none, right, left, holes, and whole rows."""
    none = torch.zeros(batch, source, dtype=torch.bool)
    right, left, holes, row, every = (none.clone() for _ in range(5))
    right[:, source - source // 2 :] = True
    left[:, : source // 2] = True
    holes[:, 1::2] = True
    row[batch - 1] = True
    every[:] = True
    return {"none": none, "right": right, "left": left, "holes": holes, "a whole row": row, "everything": every}


def all_steps(decoder: Any, tgt: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
    """The logits ``[R, T, V]`` of as many steps as ``tgt`` has positions."""
    cross, past = decoder.cross(memory, padding), decoder.empty(tgt.size(0))
    logits = []
    for position in range(tgt.size(1)):
        step, past = decoder.step(tgt[:, position : position + 1], past, cross, padding)
        logits.append(step)
    return torch.stack(logits, dim=1)


def agree(model: Any, decoder: Any, batch: int, source: int, target: int, beams: int = 1) -> None:
    """Compare over every kind of padding."""
    src, _ = inputs(batch, source, target)
    _, tgt = inputs(batch * beams, source, target)
    limit = LIMITS[model.pos_embedding.pe.dtype]
    for kind, padding in paddings(batch, source).items():
        with torch.no_grad():
            memory = model.encode(src, padding)
            rows, row_padding = memory.repeat_interleave(beams, 0), padding.repeat_interleave(beams, 0)
            expected = model.decode(tgt, rows, None, row_padding)
            found = all_steps(decoder, tgt, memory, padding)
        assert torch.isfinite(found).all(), kind
        torch.testing.assert_close(
            found, expected, rtol=limit, atol=limit, msg=lambda text, kind=kind: f"{kind}: {text}"
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("make", [translation, couplet])
def test_cached_steps_are_the_full_decoder_at_every_position(make: Any, options: Any, dtype: torch.dtype) -> None:
    model = make(**options).to(dtype)
    agree(model, CachedDecoder(model), 3, 5, 7)


@pytest.mark.parametrize("beams", [1, 2, 3])
@pytest.mark.parametrize(
    ("batch", "source", "target"), [(1, 1, 1), (1, 6, 3), (2, 2, 2), (2, 7, 20), (5, 3, 4), (4, 20, 9)]
)
def test_hypotheses_share_the_memory_of_their_sentence(batch: int, source: int, target: int, beams: int) -> None:
    model = translation().double()
    agree(model, CachedDecoder(model), batch, source, target, beams)


def test_hypotheses_may_have_an_axis_of_their_own() -> None:
    model = translation(num_decoder_layers=2).double()
    decoder = CachedDecoder(model)
    src, _ = inputs(2, 5, 4)
    _, tgt = inputs(6, 5, 4)
    padding = paddings(2, 5)["right"]
    with torch.no_grad():
        cross, rows = decoder.cross(model.encode(src, padding), padding), decoder.empty(6)
        axes = [tensor.unflatten(0, (2, 3)) for tensor in rows]
        for position in range(4):
            ids = tgt[:, position : position + 1]
            expected, rows = decoder.step(ids, rows, cross, padding)
            found, axes = decoder.step(ids.view(2, 3), axes, cross, padding)
            for one, other in zip([found, *axes], [expected, *(t.unflatten(0, (2, 3)) for t in rows)], strict=True):
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", [OPTIONS["norm last"], OPTIONS["norm first"], OPTIONS["no bias"]])
@pytest.mark.parametrize("beams", [1, 3])
def test_the_scripted_decoder_computes_the_same(options: Any, beams: int) -> None:
    model = translation(**options).double()
    agree(model, torch.jit.script(CachedDecoder(model)), 2, 5, 6, beams)


def test_steps_may_start_from_a_past_and_reorder_it() -> None:
    model = translation().double()
    decoder = CachedDecoder(model)
    src, tgt = inputs(2, 5, 6)
    _, other = inputs(2, 4, 6)
    padding = paddings(2, 5)["right"]
    order = torch.tensor([1, 0])
    with torch.no_grad():
        memory = model.encode(src, padding)
        cross, past = decoder.cross(memory, padding), decoder.empty(2)
        for position in range(3):
            _, past = decoder.step(tgt[:, position : position + 1], past, cross, padding)
        # From here on the rows have changed places, and so have their sentences.
        past = [tensor.index_select(0, order) for tensor in past]
        cross = [tensor.index_select(0, order) for tensor in cross]
        swapped = torch.cat([tgt[order, :3], other[:, 3:]], dim=1)
        expected = model.decode(swapped, memory[order], None, padding[order])
        for position in range(3, 6):
            logits, past = decoder.step(swapped[:, position : position + 1], past, cross, padding[order])
            torch.testing.assert_close(logits, expected[:, position], rtol=1e-12, atol=1e-12)


def test_a_step_leaves_what_it_was_given_as_it_was() -> None:
    model = translation()
    decoder = CachedDecoder(model)
    src, tgt = inputs(2, 5, 1)
    padding = paddings(2, 5)["a whole row"]
    cross, past = decoder.cross(model.encode(src, padding), padding), decoder.empty(2)
    _, past = decoder.step(tgt, past, cross, padding)
    given = [tgt, *past, *cross, padding]
    before = [tensor.clone() for tensor in given]
    decoder.step(tgt, past, cross, padding)
    assert all(torch.equal(one, other) for one, other in zip(given, before, strict=True))


def test_the_cache_has_the_documented_shapes() -> None:
    model = translation(num_decoder_layers=3)
    decoder = CachedDecoder(model)
    src, tgt = inputs(2, 5, 1)
    padding = paddings(2, 5)["none"]
    cross, past = decoder.cross(model.encode(src), padding), decoder.empty(6)
    assert [tuple(tensor.shape) for tensor in past] == [(6, 4, 4, 0), (6, 4, 0, 4)] * 3
    assert [tuple(tensor.shape) for tensor in cross] == [(2, 4, 4, 5), (2, 4, 5, 4)] * 3
    for length in (1, 2):
        logits, past = decoder.step(tgt.repeat(3, 1), past, cross, padding)
        assert logits.shape == (6, 13)
        assert [tuple(tensor.shape) for tensor in past] == [(6, 4, 4, length), (6, 4, length, 4)] * 3


def test_construction_changes_nothing_in_the_model() -> None:
    model = translation().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    objects = {name: id(parameter) for name, parameter in model.named_parameters()}
    decoder = CachedDecoder(model)
    assert model.training
    assert all(module.training for module in model.modules())
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == objects
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(buffer.requires_grad for buffer in decoder.buffers())


def test_a_model_in_training_mode_is_decoded_without_dropout() -> None:
    model = translation(dropout=0.5).double()
    decoder = CachedDecoder(model.train())
    agree(model.eval(), decoder.train(), 2, 5, 4)


def test_precision_may_change_before_and_after_construction() -> None:
    model = translation()
    agree(model, CachedDecoder(model), 2, 5, 4)
    agree(model.double(), CachedDecoder(model), 2, 5, 4)
    agree(model.float(), CachedDecoder(model), 2, 5, 4)
    decoder = CachedDecoder(model)
    agree(model.double(), decoder.double(), 2, 5, 4)
    agree(model.float(), decoder.float(), 2, 5, 4)


def test_tied_and_shared_weights_stay_right() -> None:
    model = couplet(num_decoder_layers=2).double()
    model.classification.weight = model.token_embedding.embedding.weight
    layers = model.my_transformer.decoder.layers
    layers[1] = layers[0]
    layers[0].self_attn.k_proj.weight = layers[0].self_attn.q_proj.weight
    decoder = CachedDecoder(model)
    assert decoder.classification.weight is decoder.token_embedding.embedding.weight
    agree(model, decoder, 3, 5, 6, beams=2)


def test_a_missing_bias_is_zero_beside_others() -> None:
    model = translation().double()
    attention = model.my_transformer.decoder.layers[0].self_attn
    attention.k_proj.register_parameter("bias", None)
    decoder = CachedDecoder(model)
    bias = decoder.layers[0].self_attn.in_proj_bias
    scaled = attention.q_proj.bias / 2  # heads of width 4
    assert bias.tolist() == [*scaled.tolist(), *[0.0] * 16, *attention.v_proj.bias.tolist()]
    agree(model, decoder, 2, 5, 4)


def test_only_the_fused_weights_are_copies() -> None:
    model = translation(num_decoder_layers=2)
    theirs = {tensor.data_ptr() for tensor in model.state_dict().values()}
    copied = {name for name, tensor in CachedDecoder(model).state_dict().items() if tensor.data_ptr() not in theirs}
    assert copied == {
        f"layers.{layer}.{name}"
        for layer in range(2)
        for name in (
            "self_attn.in_proj_weight",
            "self_attn.in_proj_bias",
            "multihead_attn.q_proj_weight",
            "multihead_attn.q_proj_bias",
            "multihead_attn.kv_proj_weight",
            "multihead_attn.kv_proj_bias",
        )
    }


def test_a_position_beyond_the_last_is_refused() -> None:
    model = translation(max_length=3)
    decoder = CachedDecoder(model)
    src, tgt = inputs(1, 2, 4)
    with pytest.raises(ValueError, match="position 3 does not fit into 3 positions"):
        all_steps(decoder, tgt, model.encode(src), paddings(1, 2)["none"])


def test_a_model_without_decoder_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="0 decoder layers, a cached decoder needs at least 1"):
        CachedDecoder(TranslationModel(5, 5, 8, 2, 1, 0, 8))
