"""The gate on the task: its data, its measures, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu import corpus_bleu, corpus_chrf

from bundles import LETTERS, SOUNDS, tiny_model
from exported_models import Exported, build
from mytx.exporter import OptionError
from mytx.exporter.graphs.model_graphs import graphs_of
from mytx.exporter.parity.report import GraphReport, ParityReport
from mytx.exporter.parity.task_report import Measure, TaskReport
from mytx.exporter.task import measures
from mytx.exporter.task.data import MADE, made_task, read_task
from mytx.exporter.task.gate import Task, task_of
from mytx.exporter.task.measures import distance, measures_of
from mytx.models.vocab import Vocabulary

VOCABULARY = Vocabulary({name: number for name, number in LETTERS.items() if name != "<unk>"}, SOUNDS)


def read(path: Path, text: str | bytes, vocabulary: Vocabulary | None = VOCABULARY) -> tuple[object, object]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    found = read_task(path, vocabulary, ids=12, longest=5)
    return found.sources, found.references


@pytest.mark.parametrize(
    ("text", "sources", "references"),
    [
        ("ab\n\nc\n", ((4, 5), (6,)), ()),
        ("ab\tB K\nc\tD\tB\n", ((4, 5), (6,)), (("B K",), ("D", "B"))),
        ("ab\tB\r\nc\tK \r\n", ((4, 5), (6,)), (("B",), ("K",))),
        ("\ufeffab\n", ((4, 5),), ()),
    ],
    ids=["sources alone", "several references", "lines of Windows", "a mark at the beginning"],
)
def test_a_line_is_a_source_or_a_source_and_right_results(
    text: str, sources: object, references: object, tmp_path: Path
) -> None:
    assert read(tmp_path / "task.txt", text) == (sources, references)


def test_without_a_vocabulary_a_source_is_ids(tmp_path: Path) -> None:
    assert read(tmp_path / "task.txt", "4 5\n11\n", None) == (((4, 5), (11,)), ())


@pytest.mark.parametrize(
    ("text", "vocabulary", "words"),
    [
        ("", VOCABULARY, "has no sentences"),
        ("\n \n", VOCABULARY, "has no sentences"),
        (b"a\xff\n", VOCABULARY, "is not UTF-8"),
        ("ab\nxyz\n", VOCABULARY, "line 2 of"),
        ("ab\tB\nc\n", VOCABULARY, "line 2 of .* has no reference, line 1 has one"),
        ("ab\nc\tB\n", VOCABULARY, "line 2 of .* has a reference, line 1 has none"),
        ("ab\t\n", VOCABULARY, "line 1 of .* has an empty reference"),
        ("\tB\n", VOCABULARY, "line 1 of .* has no source"),
        ("abcabc\n", VOCABULARY, "line 1 of .* has 6 tokens, the model has 5 positions"),
        ("4 12\n", None, "line 1 of .* id 12 is outside the vocabulary of 12"),
        ("ab\n", None, "line 1 of .* is not ids"),
    ],
)
def test_a_line_that_does_not_fit_is_named(
    text: str | bytes, vocabulary: Vocabulary | None, words: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=words) as raised:
        read(tmp_path / "task.txt", text, vocabulary)
    assert raised.value.hint


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"none\.txt cannot be read"):
        read_task(tmp_path / "none.txt", None, ids=3, longest=3)


def test_made_sentences_are_the_same_each_time_and_have_no_special_ids() -> None:
    one, other = (made_task([0, 1, 2], ids=30, longest=12) for _ in range(2))
    assert one == other
    assert len(one.sources) == MADE
    assert {token for source in one.sources for token in source} == set(range(3, 30))
    assert {len(source) for source in one.sources} == set(range(5, 13))
    assert made_task([0, 1, 2], ids=3, longest=2).sources[0]  # nothing but special ids


# --- measures --------------------------------------------------------------------------------------------------------


def plain_distance(one: Sequence[int], other: Sequence[int]) -> int:
    rows = [[max(i, j) if not (i and j) else 0 for j in range(len(other) + 1)] for i in range(len(one) + 1)]
    for i, a in enumerate(one, 1):
        for j, b in enumerate(other, 1):
            rows[i][j] = min(rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (a != b))
    return rows[-1][-1]


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), max_size=8))
def test_the_distance_is_that_of_levenshtein(one: list[int], other: list[int]) -> None:
    assert distance(one, other) == plain_distance(one, other)


def test_error_rates_count_against_the_nearest_right_result() -> None:
    right = [["a b c", "a x"], ["d e"]]
    (rate, *_) = measures_of(["a x", "d e"], ["a y", "d"], right, characters=False)
    assert (rate.name, rate.float32, rate.other) == ("word error rate", 0.0, 50.0)
    assert rate.other_reach >= 0
    (rate, *_) = measures_of(["abc"], ["abd"], [["abc"]], characters=True)
    assert (rate.name, rate.float32) == ("character error rate", 0.0)
    assert rate.other == pytest.approx(100 / 3)


def test_chrf_and_bleu_are_sacrebleus() -> None:
    one = ["the cat sat on the mat", "a dog ran over the hill"]
    other = ["the cat sat on a mat", "a dog ran over the hills today"]
    right = [["the cat sat on the mat", "a cat sat on the mat"], ["the dog ran over the hill"]]
    streams = [[right[0][0], right[1][0]], [right[0][1], None]]
    _, chrf, bleu = measures_of(one, other, right, characters=False)
    for found, score in ((chrf, corpus_chrf), (bleu, corpus_bleu)):
        assert found.float32 == pytest.approx(score(one, streams).score)
        assert found.other == pytest.approx(score(other, streams).score)
        assert found.other_reach > 0


def test_without_sacrebleu_there_are_error_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "find_spec", lambda name: None)
    assert [one.name for one in measures_of(["a"], ["a"], [["a"]], characters=False)] == ["word error rate"]


# --- the report ------------------------------------------------------------------------------------------------------


def report(same: int, sentences: int, target: float | None = None) -> TaskReport:
    measure = Measure("chrF", 80.0, 1.5, 79.5, 1.25)
    return TaskReport("greedy.int8.onnx", "int8", "task.txt", sentences, same, 0.995, 0.1, target, (measure,))


@pytest.mark.parametrize(
    ("same", "sentences", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662), (198, 200, 0.9643, 0.9973)],
)
def test_the_interval_is_wilsons(same: int, sentences: int, low: float, high: float) -> None:
    """81 of 263: Newcombe, "Two-sided confidence intervals for the single proportion", 1998, table I."""
    assert report(same, sentences).interval == pytest.approx((low, high), abs=6e-5)


def test_the_target_is_reached_or_not() -> None:
    assert report(90, 100).passed
    assert report(90, 100, 0.9).passed
    assert not report(89, 100, 0.9).passed
    assert "89 of 100 sentences of task.txt" in report(89, 100, 0.9).words
    assert "and 90 % must" in report(89, 100, 0.9).words
    assert "must" not in report(90, 100, 0.9).words


def test_a_report_without_the_target_has_not_passed_whatever_else_has() -> None:
    row = GraphReport("greedy", "int8", "onnxruntime", 1, 1, 0.0, 0.0, "", True)
    assert ParityReport((row,), (report(9, 10, 0.9),)).passed
    missed = ParityReport((row,), (report(8, 10, 0.9),))
    assert not missed.passed
    assert not missed.doubted
    assert ParityReport.from_dict(missed.to_dict()) == missed
    old = {name: value for name, value in missed.to_dict().items() if name != "task"}
    assert ParityReport.from_dict(old).task == ()


# --- the gate --------------------------------------------------------------------------------------------------------


def checked(exported: Exported, names: Sequence[str], folder: Path, **options: object) -> TaskReport:
    graphs = {name: exported.every[name] for name in names}
    settings: dict[str, object] = {"data": None, "vocabulary": None, "target": None, **options}
    task = task_of(exported.model, graphs, ["onnx", "int8"], **settings)  # type: ignore[arg-type]
    assert isinstance(task, Task)
    (found,) = task.check(folder)
    return found


@pytest.mark.parametrize(
    ("names", "file"),
    [
        (("greedy", "generate"), "greedy.int8.onnx"),
        (("generate",), "generate.int8.onnx"),
        (("encoder", "decoder"), "decoder.int8.onnx"),
    ],
)
def test_it_decodes_with_what_there_is(names: tuple[str, ...], file: str, exports: Callable[[str], Exported]) -> None:
    lively = exports("lively")
    for name in names:
        lively.quantised(name)
    found = checked(lively, names, lively.folder)
    assert (found.file, found.precision, found.sentences, found.target) == (file, "int8", MADE, None)
    assert 0.3 < found.share <= 1.0
    assert found.share <= found.tokens <= 1.0 or found.tokens > 0.5
    assert found.passed


def test_a_file_in_float32_is_the_same_in_all_sentences_and_another_model_is_not(
    exports: Callable[[str], Exported], tmp_path: Path
) -> None:
    """The gate looks at the file: here a file in float32 stands in its place."""
    lively = exports("lively")
    (tmp_path / "greedy.int8.onnx").write_bytes(lively.path("greedy").read_bytes())
    same = checked(lively, ["greedy"], tmp_path, target=1.0)
    assert (same.share, same.tokens, same.passed) == (1.0, 1.0, True)
    assert same.score < 1e-5
    other = build("lively")
    other.classification.bias.data[5] += 3.0
    graphs = {"greedy": graphs_of(other)["greedy"]}
    task = task_of(other, graphs, ["int8"], data=None, vocabulary=None, target=1.0)
    assert task is not None
    (found,) = task.check(tmp_path)
    assert found.share < 0.9
    assert found.tokens < 1.0
    assert not found.passed


def test_the_default_target_is_for_a_users_data(exports: Callable[[str], Exported], tmp_path: Path) -> None:
    lively = exports("lively")
    (tmp_path / "greedy.int8.onnx").write_bytes(lively.path("greedy").read_bytes())
    (tmp_path / "task.txt").write_text("3 4 5\t6 7\n6 7\t8\n")
    found = checked(lively, ["greedy"], tmp_path, data=tmp_path / "task.txt")
    assert (found.sentences, found.target) == (2, 0.9)
    assert [measure.name for measure in found.measures] == ["word error rate", "chrF", "BLEU"]
    assert all(measure.float32 == measure.other for measure in found.measures)


@pytest.mark.parametrize("kind", ["average pooling", "bare"])
def test_a_model_that_decodes_nothing_has_no_task(kind: str, tmp_path: Path) -> None:
    model = build(kind)
    graphs = graphs_of(model)
    settings: dict[str, object] = {"vocabulary": None}
    assert task_of(model, graphs, ["int8"], data=None, target=None, **settings) is None  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no graph decodes here"):
        task_of(model, graphs, ["int8"], data=tmp_path / "task.txt", target=None, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", [-0.1, 1.01, float("nan")])
def test_a_target_is_a_share(target: float) -> None:
    model = tiny_model().eval()
    with pytest.raises(OptionError, match="the target is"):
        task_of(model, graphs_of(model), ["int8"], data=None, vocabulary=None, target=target)


def test_scores_of_a_measure_are_numbers_of_json() -> None:
    assert all(isinstance(value, (str, float)) for value in vars(report(1, 2).measures[0]).values())
    assert np.isfinite(report(1, 2).interval).all()
