"""Models that break an identity are found, and those that keep it pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from exported_models import KINDS, Exported
from mytx.exporter.cases.identities import whole_plan
from mytx.exporter.contracts.contract import Contract, TensorSpec
from mytx.exporter.graphs.graph import Graph
from mytx.exporter.graphs.modules import GraphModule
from mytx.exporter.parity.reference import compute_references
from mytx.exporter.parity.report import GraphReport
from mytx.exporter.parity.verify import verify_file
from mytx.exporter.runtimes.composed import Composed
from mytx.exporter.runtimes.eager import Eager
from mytx.exporter.runtimes.run import Run
from mytx.exporter.runtimes.runtime import Runtime
from plans import ALL, ALONE, BATCH, FUTURE, PADDING, PROMISED, SOURCE, derived, tried

# --- models that break them ------------------------------------------------------------------------------------------


MASK = TensorSpec("mask", "bool", (BATCH, SOURCE), role="padding")
SRC = TensorSpec("src", "int64", (BATCH, SOURCE), role="ids", limit=11, hidden_by=("mask",), future="inside")
EACH_POSITION = TensorSpec("y", "float32", (BATCH, SOURCE, 4))
POOLED = TensorSpec("y", "float32", (BATCH, 4))


class Embedded(GraphModule):
    """An embedding, and what a function makes of it: ``[batch, length, 4]`` and the real positions."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        torch.manual_seed(3)
        super().__init__(nn.ModuleDict({"embedding": nn.Embedding(11, 4)}).eval())
        self.function = function

    def forward(self, src: Tensor, mask: Tensor) -> Tensor:
        return self.function(self.model["embedding"](src), (~mask)[..., None])


def past(x: Tensor, real: Tensor) -> Tensor:
    """At each position the sum of the real ones up to there, and itself: all identities hold."""
    return x + (x * real).cumsum(1)


def graph_of(function: Callable[[Tensor, Tensor], Tensor], output: TensorSpec = EACH_POSITION, **src: object) -> Graph:
    inputs = (replace(SRC, **src), MASK)  # type: ignore[arg-type]
    return Graph(Contract("encoder", inputs, (output,), "batch first"), Embedded(function), ("embedding.",))


def failed(graph: Graph) -> set[str]:
    """The identities that do not hold in PyTorch; every other case must pass."""
    plan = whole_plan(graph.contract)
    references = compute_references(graph.module.model, graph, plan)
    assert tried(plan)
    run = Run("PyTorch", lambda path: Eager(graph), dimensions=False)
    (report,) = verify_file(Path("model"), graph.contract, plan, references, [run], format_name="eager")
    assert report.cases == len(plan)
    assert report.passed is not bool(report.findings)
    assert {finding.check for finding in report.findings} <= {"rounding"}
    wrong = {finding.message.split()[1] for finding in report.findings}
    broken = [case for case in plan if case.name in wrong]
    assert len(broken) == len(wrong)
    assert all(case.group == "identities" for case in broken)
    return {which for which in ALL for case in broken if which in case.words}


def test_a_model_for_which_all_identities_hold_passes() -> None:
    assert failed(graph_of(past)) == set()


def test_content_behind_padding_that_leaks_is_found() -> None:
    """With the padding on the right, what leaks to the left is the future, too; and the sentence alone has none."""
    assert failed(graph_of(lambda x, real: x + x.cumsum(1))) == {PADDING}
    assert failed(graph_of(lambda x, real: x + x.sum(1, keepdim=True), future="")) == {PADDING, ALONE}
    assert failed(graph_of(lambda x, real: x.mean(1), POOLED, future="")) == {PADDING, ALONE}


def test_padding_that_may_leak_is_not_held_against_a_model_that_does_not_promise_it() -> None:
    assert failed(graph_of(lambda x, real: x + x.sum(1, keepdim=True), hidden_by=(), future="")) == set()


def test_the_future_that_leaks_is_found() -> None:
    total = graph_of(lambda x, real: x + (x * real).sum(1, keepdim=True))
    assert failed(total) == {FUTURE}
    one_ahead = graph_of(lambda x, real: past(x, real) + torch.cat([(x * real)[:, 1:], torch.zeros_like(x[:, :1])], 1))
    assert failed(one_ahead) == {FUTURE}
    assert failed(graph_of(lambda x, real: x + (x * real).sum(1, keepdim=True), future="")) == set()


def test_sentences_of_a_batch_that_influence_each_other_are_found() -> None:
    assert failed(graph_of(lambda x, real: past(x, real) + 0.01 * past(x, real).mean(0))) >= {ALONE}
    assert failed(graph_of(lambda x, real: past(x, real).flip(0))) >= {ALONE}


def test_a_model_that_counts_padding_in_is_found_by_the_sentence_alone() -> None:
    """The content is hidden, but the length is not: divided by all positions instead of the real ones."""
    assert failed(graph_of(lambda x, real: (x * real).mean(1), POOLED, future="")) == {ALONE}
    honest = graph_of(lambda x, real: (x * real).sum(1) / real.sum(1).clamp(min=1), POOLED, future="")
    assert failed(honest) == set()


@pytest.mark.parametrize("size", [1e-2, 1e-4, 1e-6])
def test_a_leak_is_found_where_it_is_larger_than_rounding(size: float) -> None:
    leak = graph_of(lambda x, real: past(x, real) + size * (x * ~real).sum(1, keepdim=True), future="")
    assert (PADDING in failed(leak)) is (size > 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_all_identities_hold_for_every_kind_of_model_in_pytorch(kind: str, exports: Callable[[str], Exported]) -> None:
    exported = exports(kind)
    for name, graph in exported.graphs.items():
        run = Run("PyTorch", lambda path, graph=graph: Eager(graph), lambda case: case.group == "identities")  # type: ignore[misc]
        plan = exported.plan(name)
        (report,) = verify_file(Path(name), graph.contract, plan, exported.expected(name), [run], format_name="eager")
        assert report.findings == ()
        assert report.passed
        assert report.cases == len(derived(plan)) >= 3


# --- full is the decoder after the encoder ---------------------------------------------------------------------------


def composed(exported: Exported, encoder: Runtime) -> GraphReport:
    """The report on full by way of an encoder and the honest decoder."""
    graph = exported.graphs["full"]
    runtime = Composed(encoder, Eager(exported.graphs["decoder"]), graph.contract)
    run = Run("both", lambda path: runtime, dimensions=False)
    plan = exported.plan("full")
    (report,) = verify_file(Path("full"), graph.contract, plan, exported.expected("full"), [run], format_name="eager")
    assert report.cases == len(plan)
    return report


@pytest.mark.parametrize("kind", [kind for kind, graphs in PROMISED.items() if "decoder" in graphs])
def test_the_decoder_after_the_encoder_is_full_for_every_kind_that_has_both(
    kind: str, exports: Callable[[str], Exported]
) -> None:
    exported = exports(kind)
    report = composed(exported, Eager(exported.graphs["encoder"]))
    assert report.findings == ()
    assert report.passed


class Scaled(GraphModule):
    """An encoder whose output is a little larger."""

    def forward(self, src: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        memory: Tensor = self.model.encode(src, src_key_padding_mask)
        return 1.001 * memory


def test_an_encoder_that_gives_the_decoder_another_memory_is_found(translation: Exported) -> None:
    encoder = translation.graphs["encoder"]
    report = composed(translation, Eager(replace(encoder, module=Scaled(translation.model))))
    assert not report.passed
    assert {finding.check for finding in report.findings} == {"rounding"}
    assert report.worst_ratio > 10
