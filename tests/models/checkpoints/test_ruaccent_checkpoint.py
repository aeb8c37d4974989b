"""A published checkpoint, ruaccent-predictor's, loads exactly as it is distributed."""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mytx.models import CheckpointError, CoupletModel, Vocabulary, config_of, find_vocab, load_checkpoint

GOLDENS = json.loads((Path(__file__).parents[2] / "data" / "ruaccent.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def path() -> Path:
    spec = importlib.util.find_spec("ruaccent")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model" / "acc_model.pt"


@pytest.fixture(scope="module")
def model(path: Path) -> CoupletModel:
    loaded = load_checkpoint(path, 8)
    assert isinstance(loaded, CoupletModel)
    return loaded


def test_it_loads_with_the_head_count_alone(model: CoupletModel) -> None:
    config = config_of(model)
    sizes = config.transformer
    assert (config.src_vocab_size, config.tgt_vocab_size, config.max_length) == (224, 224, 256)
    assert (sizes.d_model, sizes.nhead, sizes.dim_feedforward) == (256, 8, 1024)
    assert (sizes.num_encoder_layers, sizes.num_decoder_layers) == (4, 4)
    assert (sizes.activation, sizes.norm_first, sizes.final_norm, sizes.bias) == ("relu", False, True, True)
    assert (config.pad_id, config.bos_id, config.eos_id) == (0, 1, 2)
    assert {str(item) for item in config.assumed} == {
        "activation=relu (default)",
        "norm_first=False (default)",
        "layer_norm_eps=1e-05 (default)",
        "embedding_scale=16.0 (default)",
        "pad_id=0 (vocab.json)",
        "bos_id=1 (vocab.json)",
        "eos_id=2 (vocab.json)",
        "positions=embed.pos_encoding (mapped by shape)",
        "output_projection=output_proj.weight (mapped by shape)",
        "source_embedding=embed.char_embed.weight (mapped by shape)",
        "target_embedding=embed.char_embed.weight (mapped by shape)",
    }


def test_without_the_head_count_it_asks_for_it(path: Path) -> None:
    with pytest.raises(CheckpointError, match="d_model 256 it may be 2, 4, 8 or 16") as caught:
        load_checkpoint(path)
    assert caught.value.hint == "pass --nhead N"


def test_its_vocabulary_is_found_and_spells_the_goldens(path: Path) -> None:
    found = find_vocab(path)
    assert found is not None
    vocabulary = Vocabulary.read(found)
    for golden in GOLDENS:
        assert vocabulary.encode_source(golden["text"]) == golden["source_ids"]
        assert vocabulary.decode_target(golden["target_ids"]) == golden["output"]


class Reference(nn.Module):
    """What the package computes, on PyTorch's own Transformer and the file's own names."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        super().__init__()
        self.transformer = nn.Transformer(256, 8, 4, 4, 1024, batch_first=True)
        self.output_proj = nn.Linear(256, 224)
        self.char_embed = nn.Embedding(224, 256)
        self.register_buffer("pos_encoding", torch.zeros(1, 256, 256))
        self.load_state_dict({name.removeprefix("embed."): tensor for name, tensor in state.items()})
        self.eval().double()

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        source, target = (self.char_embed(ids) * 16.0 + self.pos_encoding[:, : ids.size(1)] for ids in (src, tgt))
        mask = torch.ones(tgt.size(1), tgt.size(1)).triu(1).bool()
        return self.output_proj(self.transformer(source, target, tgt_mask=mask))


def test_it_equals_pytorchs_transformer_with_the_same_weights(path: Path, model: CoupletModel) -> None:
    reference = Reference(torch.load(path, map_location="cpu", weights_only=True))
    generator = torch.Generator().manual_seed(0)
    src, tgt = torch.randint(0, 224, (2, 17), generator=generator), torch.randint(0, 224, (2, 9), generator=generator)
    with torch.no_grad():
        expected = reference(src, tgt)
        actual = copy.deepcopy(model).double()(src, tgt)
    assert (actual - expected).abs().max() < 1e-10 * expected.abs().max()


def test_greedy_decoding_gives_the_golden_ids(model: CoupletModel) -> None:
    """Sources are padded to all 256 positions, without a mask, as in training."""
    golden = GOLDENS[0]
    src = torch.zeros(1, 256, dtype=torch.long)
    src[0, : len(golden["source_ids"])] = torch.tensor(golden["source_ids"])
    target = torch.tensor([[1, *golden["target_ids"]]])
    with torch.no_grad():
        logits = model.decode(target[:, :-1], model.encode(src))
    assert logits.argmax(-1)[0].tolist() == golden["target_ids"]
