"""Every check is needed: for each there is a fault that no other check finds."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from catalogue import FAULTS
from examine import Verdict
from exported_models import Exported
from fault import Fault
from subject import Subject

VerdictOn = Callable[[Fault], Verdict]
BY_NAME = {fault.name: fault for fault in FAULTS}

# Check -> faults that it alone finds.
ONLY = {
    "weights": ["the bias of a key, which cancels in the softmax", "a near copy of a weight in the loop"],
    "structure": ["epsilon 1e-12", "epsilon 1.2e-05", "attention scale off by 1e-6"],
    "rounding": ["wrong at level extended alone", "positions that start again at 32"],
    "interface": ["the inputs in another order", "one hypothesis whatever is asked for"],
    "runtime": ["the batch frozen in a reshape", "a crash on long sentences"],
    "not judged": ["a noise that hides a fault"],
}
# What all findings of a fault say, and no other: a pattern.
SAY = {
    "nothing was compared": ["a plan without cases", "a plan of which no case is run"],
    "with another tgt": ["a cache that forgets tgt"],
    "with another memory": ["a cache that forgets memory"],
    "with another tgt_key_padding_mask": ["a cache that forgets tgt_key_padding_mask"],
    "with another memory_key_padding_mask": ["a cache that forgets memory_key_padding_mask"],
    "with other content behind the padding": ["content behind padding on the left leaks"],
    "after position": ["the next position leaks"],
    r"sentence \d of case \d+ alone": ["a statistic of the batch leaks"],
}
# Run -> faults of which no other run tells.
RUNS = {
    "onnxruntime": "wrong with several threads alone",
    "onnxruntime, 1 thread": "wrong on one thread alone",
    "onnxruntime, level extended": "wrong at level extended alone",
    "onnxruntime, level basic": "wrong at level basic alone",
    "onnxruntime, level off": "wrong at level off alone",
    "onnx.reference, float64": "epsilon 1e-12",
    "onnxruntime, decoder(encoder)": "a half that is not the full graph's",
    "onnxruntime, N cached steps": "a past that does not follow its sentence",
    "PyTorch, decoder(encoder)": "a full model that is not its halves",
}


@pytest.mark.parametrize(("check", "name"), [(check, name) for check, names in ONLY.items() for name in names])
def test_there_is_a_fault_that_only_this_check_finds(check: str, name: str, verdict_on: VerdictOn) -> None:
    assert verdict_on(BY_NAME[name]).checks == (check,)


@pytest.mark.parametrize(("words", "name"), [(words, name) for words, names in SAY.items() for name in names])
def test_there_is_a_fault_that_only_these_cases_find(words: str, name: str, verdict_on: VerdictOn) -> None:
    messages = verdict_on(BY_NAME[name]).messages
    assert messages
    assert all(re.search(rf"{words}\b", message) for message in messages)


@pytest.mark.parametrize(("run", "name"), RUNS.items())
def test_there_is_a_fault_that_only_this_run_tells_of(
    run: str, name: str, exports: Callable[[str], Exported], tmp_path_factory: pytest.TempPathFactory
) -> None:
    fault = BY_NAME[name]
    subject = Subject(exports(fault.model), fault.graph, tmp_path_factory.mktemp("fault") / "planted")
    fault.plant(subject)
    reports = subject.verify()
    assert [report.runtime for report in reports if not report.passed] == [run]


def test_every_way_to_run_a_file_is_in_the_table_or_is_one_of_two(translation: Exported) -> None:
    """onnx.reference in float32 and onnxruntime run the same file: what one of them gets wrong alone is its own."""
    runs = {report.runtime for report in translation.verify("full")}
    assert runs - set(RUNS) == {"onnx.reference"}
