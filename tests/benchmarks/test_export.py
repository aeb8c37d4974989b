"""The benchmark of exports measures what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.export import in_words

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_each_number_of_layers_is_exported() -> None:
    command = [sys.executable, "-m", "benchmarks.export", "--preset", "tiny", "--layers", "1", "2", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found) == ["1", "2"]
    assert all(seconds > 0 for seconds in found.values())


def test_the_first_is_what_the_others_are_held_against() -> None:
    assert in_words({3: 10.0, 12: 12.5})[1] == "12 layers: export 12.5 s, 1.25 x 3 layers"
