"""What tracing bakes in: Python's ``if``, ``for`` and ``int()`` over the example's data."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import torch
from torch import Tensor, nn

from fault import Fault, found_by
from mytx.exporter.cases.plan import example
from mytx.exporter.graphs.modules import Encode, Translate
from mytx.exporter.quiet import quiet
from subject import Subject


class ShortcutWithoutPadding(Encode):
    """Where nothing is padding, no mask is used: in the example nothing was."""

    def forward(self, src: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        if bool(src_key_padding_mask.any()):
            return self.model.encode(src, src_key_padding_mask)
        return self.model.encode(src)


class StepByStep(Translate):
    """A decode in Python: it stops after as many steps as the example had (parseq#12)."""

    def forward(self, src: Tensor, tgt: Tensor, src_key_padding_mask: Tensor, tgt_key_padding_mask: Tensor) -> Tensor:
        memory = self.model.encode(src, src_key_padding_mask)
        steps = [
            self.model.decode(tgt[:, : n + 1], memory, tgt_key_padding_mask[:, : n + 1], src_key_padding_mask)[:, -1]
            for n in range(int(tgt.size(1)))
        ]
        return torch.stack(steps, 1)


class CutToTheLongest(Translate):
    """Sources end where the longest of them does: in the example that was at 7."""

    def forward(self, src: Tensor, tgt: Tensor, src_key_padding_mask: Tensor, tgt_key_padding_mask: Tensor) -> Tensor:
        longest = max(1, int((~src_key_padding_mask).sum(1).max()))
        src, padding = src[:, :longest], src_key_padding_mask[:, :longest]
        return self.model(src, tgt, padding, tgt_key_padding_mask)


class OneByOne(Encode):
    """A loop over the sentences: the example had two."""

    def forward(self, src: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        rows = range(int(src.size(0)))
        return torch.cat([self.model.encode(src[i : i + 1], src_key_padding_mask[i : i + 1]) for i in rows])


class StopsWhenAllHaveEnded(Translate):
    """The scores after the step at which every sentence of the example has ended are not computed (parseq#108)."""

    def forward(self, src: Tensor, tgt: Tensor, src_key_padding_mask: Tensor, tgt_key_padding_mask: Tensor) -> Tensor:
        scores = self.model(src, tgt, src_key_padding_mask, tgt_key_padding_mask)
        ended = ((tgt == self.model.config.eos_id).cumsum(1) > 0).all(0)
        steps = int((~ended).sum()) + 1
        return torch.cat([scores[:, :steps], torch.zeros_like(scores[:, steps:])], 1)


def traced(make: Callable[[nn.Module], nn.Module]) -> Callable[[Subject], None]:
    """The file comes from a trace of another module on the example inputs, under the model's own names."""

    def plant(subject: Subject) -> None:
        contract = subject.contract
        module = make(subject.exported.model).eval()
        inputs = {name: torch.from_numpy(array) for name, array in example(contract).inputs.items()}
        with torch.no_grad(), quiet():
            torch.onnx.export(
                module,
                tuple(inputs.values()),
                str(subject.path),
                dynamo=False,
                opset_version=18,
                input_names=list(inputs),
                output_names=[spec.name for spec in contract.outputs],
                dynamic_axes={
                    spec.name: {place: label for place, label in enumerate(spec.labels) if isinstance(label, str)}
                    for spec in [*contract.inputs, *contract.outputs]
                },
                do_constant_folding=False,
                keep_initializers_as_inputs=False,
            )
        subject.edit(lambda model: _name_as_in_the_model(model.graph, set(subject.exported.weights(subject.graph))))

    return plant


def _name_as_in_the_model(graph: onnx.GraphProto, weights: set[str]) -> None:
    names = {tensor.name: tensor.name.removeprefix("model.") for tensor in graph.initializer}
    names = {old: new for old, new in names.items() if new in weights}
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)


def _row(name: str, make: Callable[[nn.Module], nn.Module], graph: str, *checks: str) -> Fault:
    return Fault(name, "tracing", traced(make), found_by(*checks), graph=graph)


# The mask is not even an input any more.
DROPPED = ("interface", "runtime", "rounding", "structure")
FAULTS = [
    _row("an if that was decided by the example", ShortcutWithoutPadding, "encoder", *DROPPED),
    _row("as many steps as the example had", StepByStep, "full", "interface"),
    _row("sources cut to the example's length", CutToTheLongest, "full", "rounding", "structure"),
    _row("as many sentences as the example had", OneByOne, "encoder", "interface", "runtime"),
    _row("no scores after the example has ended", StopsWhenAllHaveEnded, "full", "rounding", "structure"),
]
