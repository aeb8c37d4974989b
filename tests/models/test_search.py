"""Greedy and beam search: against slow independent versions, its options, near ties, and bad input."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from layout_writers import couplet, translation
from mytx.models import Generator

END = 2
STEPS = 8


def lively(make: Any = translation, **options: Any) -> Any:
    """A model in float64 whose next id depends on the source, the position and the past, so that sentences end early,
    late and not at all.
    """
    model = make(**{"norm_first": True, "num_decoder_layers": 2, **options}).double()
    table = model.pos_embedding.pe
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
        for name, parameter in model.named_parameters():
            parameter.mul_(0.0 if name.endswith("bias") else 1.0)
        model.classification.weight.mul_(0.67)
        table.copy_(torch.randn(table.shape, generator=torch.Generator().manual_seed(1)) * 3.0)
    return model


def batch(rows: int = 8, length: int = 5, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Ids, and padding on the right, of a different amount in each row."""
    src = torch.randint(0, 11, (rows, length), generator=torch.Generator().manual_seed(seed))
    padding = torch.arange(length) >= (length - torch.arange(rows) % length).unsqueeze(1)
    return src, padding


def slow_search(model: Any, src: Tensor, padding: Tensor, beams: int, penalty: float, **limits: Any) -> list[Any]:
    """Beam search for one sentence ``[S]``: no cache, no batch, and rules in another form than the library's.

    What goes on are the best candidates without the end token; what finishes is what ends among the best of all.
    """
    steps, fewest, wanted = limits.get("steps", STEPS), limits.get("fewest", 0), limits.get("wanted", 1)
    beam: list[tuple[float, list[int]]] = [(0.0, [model.config.bos_id])]
    results: list[tuple[float, list[int]]] = []
    first_ended = False
    for step in range(steps):
        candidates: list[tuple[float, list[int]]] = []
        for score, ids in beam:
            with torch.no_grad():
                memory = model.encode(src[None], padding[None])
                logits = model.decode(torch.tensor([ids]), memory, None, padding[None])[0, -1]
            if step < fewest:
                logits[END] = -math.inf
            candidates += [(score + p, [*ids, i]) for i, p in enumerate(logits.log_softmax(0).tolist())]
        candidates.sort(key=lambda pair: -pair[0])
        last = step == steps - 1
        ended = [pair for pair in candidates[:beams] if pair[1][-1] == END or last]
        results += [(score / (step + 1) ** penalty, [i for i in ids[1:] if i != END]) for score, ids in ended]
        first_ended |= candidates[0][1][-1] == END
        if last or (first_ended and len(results) >= wanted if penalty == 0 else len(results) >= beams):
            break
        beam = [pair for pair in candidates if pair[1][-1] != END][:beams]
    return sorted(results, key=lambda pair: -pair[0])[:wanted]


def rows(tokens: Tensor, lengths: Tensor) -> list[list[list[int]]]:
    """The ids of every result, without padding."""
    return [
        [ids[:length].tolist() for ids, length in zip(*pair, strict=True)] for pair in zip(tokens, lengths, strict=True)
    ]


@pytest.mark.parametrize("make", [translation, couplet])
@pytest.mark.parametrize("beams", [1, 2, 4, 5])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
def test_results_are_those_of_a_slow_search_of_one_sentence_without_a_cache(
    make: Any, beams: int, penalty: float
) -> None:
    model = lively(make)
    src, padding = batch()
    wanted = max(1, beams - 1)
    tokens, lengths, scores = Generator(model)(
        src, padding, max_length=STEPS, num_beams=beams, length_penalty=penalty, num_hypotheses=wanted
    )
    assert tokens.shape == (8, wanted, int(lengths.max()))
    assert scores.dtype == torch.float64
    found = rows(tokens, lengths)
    for sentence in range(8):
        expected = slow_search(model, src[sentence], padding[sentence], beams, penalty, wanted=wanted)
        assert found[sentence] == [ids for _, ids in expected]
        assert scores[sentence].tolist() == pytest.approx([score for score, _ in expected], rel=1e-9)
    assert len({len(ids) for sentence in found for ids in sentence}) > 1  # they do end at different steps


@pytest.mark.parametrize("limits", [(1, 0), (1, 1), (3, 3), (6, 4)])
@pytest.mark.parametrize("beams", [1, 3])
def test_lengths_stay_between_their_limits(limits: tuple[int, int], beams: int) -> None:
    most, fewest = limits
    model = lively()
    src, padding = batch()
    tokens, lengths, scores = Generator(model)(src, padding, max_length=most, min_length=fewest, num_beams=beams)
    assert fewest <= int(lengths.min())
    assert int(lengths.max()) <= most
    for sentence in range(8):
        (score, ids), *_ = slow_search(model, src[sentence], padding[sentence], beams, 1.0, steps=most, fewest=fewest)
        assert rows(tokens, lengths)[sentence] == [ids]
        assert scores[sentence].item() == pytest.approx(score, rel=1e-9)


def test_greedy_takes_the_best_token_of_every_step() -> None:
    model = lively()
    src, padding = batch()
    tokens, lengths, scores = Generator(model)(src, padding, max_length=STEPS)
    with torch.no_grad():
        memory = model.encode(src, padding)
        for sentence, (ids,) in enumerate(rows(tokens, lengths)):
            one = slice(sentence, sentence + 1)
            tgt = torch.tensor([[model.config.bos_id, *ids]])
            table = model.decode(tgt, memory[one], None, padding[one])[0].log_softmax(-1)
            whole = [*ids, END][:STEPS]
            assert table.argmax(-1)[: len(whole)].tolist() == whole
            mean = sum(float(table[place, token]) for place, token in enumerate(whole)) / len(whole)
            assert scores[sentence].item() == pytest.approx(mean, rel=1e-9)


def test_no_ids_but_the_result_and_padding_are_returned() -> None:
    model = lively(pad_id=7)
    src, padding = batch()
    tokens, lengths, _ = Generator(model)(src, padding, max_length=STEPS, num_beams=3, num_hypotheses=3)
    behind = torch.arange(tokens.size(2)) >= lengths.unsqueeze(2)
    assert behind.any()
    assert (tokens[behind] == 7).all()
    assert (tokens[~behind] != END).all()


def test_a_sentence_alone_gives_what_it_gives_in_a_batch() -> None:
    model = lively()
    src, padding = batch()
    generator = Generator(model)
    options = {"max_length": STEPS, "num_beams": 3, "num_hypotheses": 2}
    tokens, lengths, scores, margins = generator.search(src, padding, **options)
    for sentence in range(8):
        real = slice(0, int((~padding[sentence]).sum()))
        alone = generator.search(src[sentence : sentence + 1, real], None, **options)
        assert rows(*alone[:2])[0] == rows(tokens, lengths)[sentence]
        torch.testing.assert_close(alone[2][0], scores[sentence], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(alone[3][0], margins[sentence], rtol=1e-8, atol=1e-10)


def test_a_source_of_padding_gives_a_finite_result_whatever_its_ids_are() -> None:
    model = lively()
    src = torch.tensor([[3, 4, 5], [9, 9, 9], [1, 2, 3]])
    padding = torch.tensor([[True] * 3, [True] * 3, [False] * 3])
    tokens, lengths, scores = Generator(model)(src, padding, max_length=STEPS, num_beams=2)
    assert torch.isfinite(scores).all()
    assert rows(tokens, lengths)[0] == rows(tokens, lengths)[1]
    torch.testing.assert_close(scores[0], scores[1])
    expected = slow_search(model, src[0], padding[0], 2, 1.0)
    assert rows(tokens, lengths)[0] == [expected[0][1]]


@pytest.mark.parametrize("make", [translation, couplet])
def test_the_scripted_search_is_the_same(make: Any, tmp_path: Any) -> None:
    generator = Generator(lively(make).float())
    torch.jit.script(generator).save(str(tmp_path / "generate.ts.pt"))
    scripted = torch.jit.load(str(tmp_path / "generate.ts.pt"))
    src, padding = batch()
    for options in ({}, {"num_beams": 4, "num_hypotheses": 3}, {"num_beams": 2, "length_penalty": 0.0}):
        for mask in (padding, None):
            found = scripted.search(src, mask, max_length=STEPS, **options)
            for one, other in zip(found, generator.search(src, mask, max_length=STEPS, **options), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    with pytest.raises(torch.jit.Error, match="num_beams is 0"):
        scripted(src, None, num_beams=0)


def test_a_scripted_file_holds_no_weight_twice(tmp_path: Any) -> None:
    model = translation(d_model=64, dim_feedforward=256)
    torch.jit.script(Generator(model)).save(str(tmp_path / "generate.ts.pt"))
    weights = sum(tensor.numel() * 4 for tensor in model.state_dict().values())
    assert (tmp_path / "generate.ts.pt").stat().st_size < weights + 200_000


def test_construction_and_search_change_nothing_in_the_model() -> None:
    model = lively()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    src, padding = batch()
    given = src.clone(), padding.clone()
    Generator(model)(src, padding, max_length=3, num_beams=2)
    assert torch.equal(src, given[0])
    assert torch.equal(padding, given[1])
    assert not model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


# --- ties ------------------------------------------------------------------------------------------------------------


def twins(model: Any) -> Any:
    """``model`` in which ids 4 and 5 of the target always score the same, the best of all, and mean the same."""
    with torch.no_grad():
        model.classification.weight[5] = model.classification.weight[4]
        model.classification.bias[4:6] = 30.0
        embedding = model.tgt_token_embedding.embedding.weight
        embedding[5] = embedding[4]
    return model


@pytest.mark.parametrize("beams", [1, 2])
def test_a_tie_is_told_and_the_smaller_id_is_taken(beams: int) -> None:
    src, padding = batch()
    generator = Generator(twins(lively()))
    tokens, _, _, margins = generator.search(src, padding, max_length=3, num_beams=beams)
    assert (tokens == 4).all()
    assert (margins < 1e-9).all()


def test_where_the_margin_is_wide_noise_changes_nothing() -> None:
    model = lively()
    src, padding = batch(40, 6)
    options = {"max_length": STEPS, "num_beams": 3, "num_hypotheses": 2, "length_penalty": 0.0}
    tokens, lengths, _, margins = Generator(model).search(src, padding, **options)
    noise = 1e-3
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        shift = (torch.rand(13, generator=generator, dtype=torch.float64) * 2 - 1) * noise
        model.classification.bias += shift
    changed, changed_lengths, _, _ = Generator(model).search(src, padding, **options)
    # A log-probability moves by at most twice the noise, a score by that in every step.
    safe = margins > 2 * (2 * noise * STEPS)
    assert 5 < int(safe.sum()) < 40
    before, after = rows(tokens, lengths), rows(changed, changed_lengths)
    assert all(before[i] == after[i] for i in range(40) if safe[i])


# --- limits ----------------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no beams": ({"num_beams": 0}, r"num_beams is 0, choose 1 to 6: half of the vocabulary of 13"),
    "too many beams": ({"num_beams": 7}, r"num_beams is 7, choose 1 to 6"),
    "more results than beams": ({"num_beams": 2, "num_hypotheses": 3}, r"num_hypotheses is 3, choose 1 to 2"),
    "no results": ({"num_hypotheses": 0}, r"num_hypotheses is 0, choose 1 to 1"),
    "no steps": ({"max_length": 0}, r"max_length is 0, choose 1 to 20"),
    "more steps than positions": ({"max_length": 21}, r"max_length is 21, choose 1 to 20"),
    "negative minimum": ({"min_length": -1}, r"min_length is -1, choose 0 to 20"),
    "minimum over maximum": ({"max_length": 4, "min_length": 5}, r"min_length is 5, choose 0 to 4"),
    "negative penalty": ({"length_penalty": -0.5}, r"length_penalty is -0.5"),
    "penalty not a number": ({"length_penalty": math.nan}, r"length_penalty is nan"),
    "no sentences": ({"src": torch.zeros(0, 3, dtype=torch.int64)}, r"src is \[0, 3\], expected at least one"),
    "no tokens": ({"src": torch.zeros(2, 0, dtype=torch.int64)}, r"src is \[2, 0\], expected at least one"),
    "ids too large": ({"src": torch.tensor([[1, 11]])}, r"ids 1 to 11, the vocabulary only 0 to 10"),
    "ids too small": ({"src": torch.tensor([[1, -1]])}, r"ids -1 to 1, the vocabulary only 0 to 10"),
    "long source": ({"src": torch.ones(1, 21, dtype=torch.int64)}, r"length 21 exceeds the 20 positions"),
    "one dimension": ({"src": torch.tensor([1, 2])}, r"int64 \[N, S\], got torch.int64 with 1 dimensions"),
    "floats": ({"src": torch.ones(1, 2)}, r"int64 \[N, S\], got torch.float32"),
    "mask of another size": ({"src_key_padding_mask": torch.zeros(1, 2, dtype=torch.bool)}, r"mask must be bool"),
    "mask of floats": ({"src_key_padding_mask": torch.zeros(2, 3)}, r"mask must be bool .* got torch.float32"),
}


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_with_both_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Generator(translation())(**{"src": torch.ones(2, 3, dtype=torch.int64), **options})


def test_a_model_in_training_mode_is_refused() -> None:
    generator = Generator(translation(dropout=0.5).train())
    with pytest.raises(ValueError, match="call eval"):
        generator(torch.tensor([[1, 2]]))
    assert generator.eval()(torch.tensor([[1, 2]]), max_length=2)[0].shape[:2] == (1, 1)


def test_every_position_can_be_used_and_the_default_uses_no_more() -> None:
    model = lively(max_length=6)
    with torch.no_grad():
        model.classification.bias[END] = -1e9
    src = torch.ones(2, 6, dtype=torch.int64)
    for options in ({}, {"max_length": 6}, {"max_length": 6, "num_beams": 6, "num_hypotheses": 6}):
        assert (Generator(model)(src, **options)[1] == 6).all()


def test_defaults_are_ctranslate2s_where_it_has_them() -> None:
    defaults = {name: value.default for name, value in inspect.signature(Generator.forward).parameters.items()}
    assert defaults["length_penalty"] == 1.0
    assert defaults["num_hypotheses"] == 1
    assert Generator(translation(max_length=300)).default_max_length == 256
