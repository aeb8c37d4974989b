"""The small trained model that mytx includes. Needs no torch."""

from __future__ import annotations

from pathlib import Path

HELD_OUT = "heldout.txt"  # words that it was not trained on, and their pronunciations


def demo_folder() -> Path:
    """The folder of the demo model, in the format of ``save_model``: English words to ARPAbet phonemes, trained by
    ``examples/train_g2p.py``.
    """
    return Path(__file__).parent / "demo"
