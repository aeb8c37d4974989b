"""A short version of the exam that gives the counts in docs/equality.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from catalogue import FAULTS

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_short_exam_catches_every_fault_and_raises_no_false_alarm() -> None:
    command = [sys.executable, "-m", "benchmarks.verifier_exam", "--quick", "--json"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    exam = json.loads(result.stdout)
    assert exam["caught"] == exam["planted"] == len(exam["faults"])
    assert {row["kind"] for row in exam["faults"]} == {fault.kind for fault in FAULTS}
    assert exam["false_alarms"] == 0
    assert exam["not_judged"] == 0
    assert exam["honest"] == len(exam["models"]) == 3
    assert exam["places_named"] == exam["places"] > 0
    for rule in exam["others"].values():  # neither is nothing
        assert 0 < rule["caught"] < rule["planted"]


def test_an_option_that_does_not_exist_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks.verifier_exam", "--slow"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 2
