"""Where the repository and its folders are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data"
EXAMPLES = ROOT / "examples"
