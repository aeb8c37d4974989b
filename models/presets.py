"""Named model sizes."""

from __future__ import annotations

from typing import NamedTuple

from .sequence import TranslationModel


class Preset(NamedTuple):
    """The sizes of a :class:`~mytx.models.TranslationModel`; both sides have the same vocabulary size."""

    vocab_size: int
    d_model: int
    nhead: int
    num_encoder_layers: int
    num_decoder_layers: int
    dim_feedforward: int


# fmt: off
PRESETS: dict[str, Preset] = {
    #               vocab  width  heads  encoder  decoder  feed-forward
    "tiny":  Preset(  100,    32,     4,       2,       2,           64),
    "small": Preset( 8000,   256,     8,       3,       3,         1024),
    "base":  Preset(32000,   512,     8,       6,       6,         2048),
    "big":   Preset(32000,  1024,    16,       6,       6,         4096),
}
# fmt: on


def build_preset(name: str) -> TranslationModel:
    """A new, untrained model with the sizes of the preset ``name``, one of :data:`PRESETS`.

    Raises:
        ValueError: if there is no preset of this name.
    """
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    sizes = PRESETS[name]._asdict()
    vocab_size = sizes.pop("vocab_size")
    return TranslationModel(vocab_size, vocab_size, **sizes)
