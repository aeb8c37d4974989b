"""Our search gives the ids and scores of CTranslate2, on the demo model and on random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.ct2_model import open_ct2, save_ct2, translate_ct2
from mytx.models import (
    CoupletModel,
    Generator,
    TranslationModel,
    Vocabulary,
    demo_folder,
    find_vocab,
    load_model,
)

# Below this margin the two may differ: float32 in two engines, summed over a result.
TIE = 1e-4
RELATIVE = 1e-4

LIMITS = [
    {"max_length": 20},
    {"max_length": 12, "min_length": 6},
    {"max_length": 4, "min_length": 4},
    {"max_length": 1},
]
SEARCHES = [
    {"num_beams": beams, "length_penalty": penalty} for beams in (1, 2, 4, 5) for penalty in (0.0, 0.6, 1.0, 2.0)
]


def together(sources: list[list[int]]) -> tuple[Tensor, Tensor]:
    """As one batch, with its padding."""
    src = torch.zeros(len(sources), max(map(len, sources)), dtype=torch.int64)
    for row, ids in enumerate(sources):
        src[row, : len(ids)] = torch.tensor(ids)
    return src, torch.arange(src.size(1)) >= torch.tensor([[len(ids)] for ids in sources])


def compare(model: Any, translator: Any, sources: list[list[int]], **options: Any) -> tuple[int, int]:
    """Assert equality where nothing ties; the number of sentences that do not tie, and of different lengths."""
    tokens, lengths, scores, margins = Generator(model).search(*together(sources), **options)
    results = translate_ct2(translator, sources, **options)
    judged, seen = 0, set()
    for sentence, theirs in enumerate(results):
        if float(margins[sentence]) < TIE:
            continue
        judged += 1
        ours = [ids[:length].tolist() for ids, length in zip(tokens[sentence], lengths[sentence], strict=True)]
        assert ours == [result.ids for result in theirs], f"sentence {sentence}, margin {float(margins[sentence])}"
        assert scores[sentence].tolist() == pytest.approx([result.score for result in theirs], rel=RELATIVE, abs=1e-5)
        seen |= {len(ids) for ids in ours}
    return judged, len(seen)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, list[list[int]]]:
    model = load_model(demo_folder())
    vocabulary = Vocabulary.read(find_vocab(demo_folder()) or "")
    lines = (demo_folder() / "heldout.txt").read_text(encoding="utf-8").splitlines()
    sources = [vocabulary.encode_source(line.split("\t")[0]) for line in lines[:300]]
    return model, open_ct2(save_ct2(model, tmp_path_factory.mktemp("demo"))), sources


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_the_demo_gives_the_same_phonemes_and_scores(demo: Any, search: dict[str, Any]) -> None:
    judged, seen = compare(*demo, **search, num_hypotheses=search["num_beams"], max_length=40)
    assert judged > 180
    assert seen > 5


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("search", [SEARCHES[2], SEARCHES[6], SEARCHES[8], SEARCHES[15]], ids=str)
def test_limits_of_length_mean_the_same(demo: Any, search: dict[str, Any], limits: dict[str, Any]) -> None:
    judged, _ = compare(*demo, **search, **limits)
    assert judged > 180


def random_model(make: Any, **options: Any) -> Any:
    """Every parameter random, and sentences that end at different steps."""
    sizes = {"d_model": 16, "nhead": 4, "num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 24}
    vocabularies = (17, 19) if make is TranslationModel else (17,)
    model = make(*vocabularies, **{**sizes, **options}).eval()
    generator = torch.Generator().manual_seed(4)

    def random(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, generator=generator)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.copy_(random(parameter) * (1.0 if "embedding" in name else parameter.size(1) ** -0.5))
            else:
                parameter.copy_(random(parameter) * 0.1 + ("norm" in name and name.endswith("weight")))
        model.pos_embedding.pe.copy_(random(model.pos_embedding.pe))
        model.classification.weight.mul_(2.0)
        model.classification.bias[model.config.eos_id] += 1.5
    return model


MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "norm last": (TranslationModel, {}),
    "norm first": (TranslationModel, {"norm_first": True}),
    "no final norm": (TranslationModel, {"final_norm": False}),
    "norm first, no final norm": (TranslationModel, {"norm_first": True, "final_norm": False}),
    "gelu, no bias": (TranslationModel, {"activation": "gelu", "bias": False}),
    "silu, one head": (TranslationModel, {"activation": "silu", "nhead": 1}),
    "scale and epsilon": (TranslationModel, {"embedding_scale": 0.7, "layer_norm_eps": 1e-2}),
    "no scale, other ids": (TranslationModel, {"embedding_scale": 1.0, "pad_id": 5, "bos_id": 0, "eos_id": 16}),
    "one vocabulary": (CoupletModel, {"num_decoder_layers": 1}),
}


@pytest.mark.parametrize(("make", "options"), MODELS.values(), ids=MODELS)
def test_random_models_give_the_same_ids_and_scores(tmp_path: Path, make: Any, options: dict[str, Any]) -> None:
    model = random_model(make, **{"max_length": 24, **options})
    translator = open_ct2(save_ct2(model, tmp_path))
    generator = torch.Generator().manual_seed(6)
    lengths = [1, 2, 3, 5, 8, 13, 20, 24] * 2
    sources = [torch.randint(0, 17, (length,), generator=generator).tolist() for length in lengths]
    runs = [{**search, **LIMITS[0]} for search in SEARCHES]
    runs += [{**search, **limits} for search in SEARCHES[2::5] for limits in LIMITS[1:]]
    judged = seen = 0
    for run in runs:
        counts = compare(model, translator, sources, **run, num_hypotheses=run["num_beams"])
        judged, seen = judged + counts[0], max(seen, counts[1])
    assert judged > 0.9 * len(runs) * len(sources)
    assert seen > 3


def test_a_model_that_ctranslate2_cannot_represent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 encoder and 1 decoder layers"):
        save_ct2(TranslationModel(5, 5, 8, 2, 0, 1, 8), tmp_path)
