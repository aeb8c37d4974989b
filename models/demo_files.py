"""The small trained model that comes with mytx. Needs no torch."""

from __future__ import annotations

from pathlib import Path


def demo_folder() -> Path:
    """A folder as ``save_model`` writes it: English words to ARPAbet phonemes, trained by ``examples/train_g2p.py``."""
    return Path(__file__).parent / "demo"
