"""``--reference``: the class that a checkpoint was trained in, held against the model that mytx made of it.

Both run in float64, where nothing rounds; the files are held against ours. So the reading of the checkpoint, with all
that was assumed, is itself proven: a wrong activation, norm order or head count shows here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..cases.case import Array, Case, sizes_of, small
from ..cases.masks import hides
from ..cases.plan import example
from ..contracts.contract import Contract, TensorSpec
from ..errors import OptionError, first_line
from ..graphs.graph import Graph
from ..graphs.inferred import METHODS, NAMES, InferredMethod, arguments_of, infer_method
from ..graphs.precision import default_dtype_of, in_float64
from ..graphs.running import plain_torch
from ..graphs.user_model import FORWARD, method_of
from ..runtimes.run import Run
from ..runtimes.runtime import Description, described
from .report import REFERENCE

# Whose padding an original's argument is where ours has no such input.
STANDS_IN = {"memory_key_padding_mask": "src_key_padding_mask"}


@dataclass(frozen=True)
class Original:
    """Another implementation of a graph.

    Attributes:
        module: it, in float32.
        found: what its method takes.
        contract: of our graph.
        place: where it came from.
    """

    module: nn.Module
    found: InferredMethod
    contract: Contract
    place: str

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The output of the original in float64, its dimensions in our order."""
        (result,) = self.run_all([inputs])
        if isinstance(result, Exception):
            raise result
        return result

    def run_all(self, many: Sequence[Mapping[str, Array]]) -> list[dict[str, Array] | Exception]:
        """As :meth:`run` for each of ``many``, or what was raised."""
        results: list[dict[str, Array] | Exception] = []
        with plain_torch(), in_float64(self.module), default_dtype_of(self.module), torch.inference_mode():
            for inputs in many:
                try:
                    results.append(self._output(inputs))
                except Exception as error:
                    results.append(error)
        return results

    def _output(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        given = {argument: self._argument(plain, inputs) for argument, plain in self.found.arguments.items()}
        output = method_of(self.module, self.found.method)(**given)
        (spec,) = self.contract.outputs
        if not isinstance(output, Tensor):
            raise TypeError(f"{self.found.method} gives a {type(output).__name__}")
        if output.dtype != torch.float64:
            raise TypeError(f"{self.found.method} gives {output.dtype} from weights in float64: has it .float() in it?")
        lengths_first = self.contract.layout == "batch first" and not self.found.batch_first
        return {spec.name: (output.transpose(0, 1) if lengths_first and output.dim() == 3 else output).numpy()}

    def takes(self, case: Case) -> bool:
        """Whether the original has a right result: all that is masked can be said to it, and no query is left with
        nothing to attend to, for which PyTorch's own attention has none.
        """
        if any(spec.name not in case.inputs for spec in self.contract.inputs):
            return False  # of masks that are left out, for formats that have them optional
        told = {STANDS_IN.get(plain, plain) if plain not in case.inputs else plain for plain in self._masks()}
        for spec in self.contract.inputs:
            mask = case.inputs[spec.name]
            if spec.role == "padding":
                hidden = hides(mask)
                if hidden.any() and (spec.name not in told or hidden.all(axis=1).any()):
                    return False
                # It may make a mask of the padding id by itself.
                if spec.name not in told and self._has_padding_ids(spec, case):
                    return False
                # Causal, the first position sees itself alone.
                if spec.name == "tgt_key_padding_mask" and hidden[:, 0].any():
                    return False
            elif spec.role == "attention":
                hidden = hides(mask)
                if (mask != 0).any() and (spec.name not in told or hidden.all(axis=-1).any()):
                    return False
        return case.group == "shapes" or small(case)

    def _has_padding_ids(self, mask: TensorSpec, case: Case) -> bool:
        hidden_by = {spec.name for spec in self.contract.inputs if spec.role == "ids" and mask.name in spec.hidden_by}
        return any((case.inputs[name] == self.contract.ids.get("pad")).any() for name in hidden_by)

    def describe(self) -> Description:
        """PyTorch, with the tensors of the contract in float64."""
        return described(self.contract.lifted(), self.place, torch.__version__)

    def misfit(self) -> str:
        """What is wrong with the shape of its output, if anything: a ``decode`` may end before the logits."""
        inputs = example(self.contract).inputs
        given = {
            spec.name: np.zeros_like(inputs[spec.name]) if spec.role == "padding" else inputs[spec.name]
            for spec in self.contract.inputs
        }
        try:
            ((name, found),) = self.run(given).items()
        except Exception as error:
            return f"{self.found.method} fails: {first_line(error)}"
        expected = self.contract.outputs[0].shape(sizes_of(self.contract, Case("", given, "")))
        fits = found.shape == expected
        return "" if fits else f"{self.found.method} gives {list(found.shape)} for {name} {list(expected)}"

    def _masks(self) -> list[str]:
        return [plain for plain in self.found.arguments.values() if NAMES[plain][0] in ("padding", "attention")]

    def _argument(self, plain: str, inputs: Mapping[str, Array]) -> Any:
        kind = NAMES[plain]
        ours = plain if plain in inputs else STANDS_IN.get(plain, plain)
        if ours in inputs:
            tensor = torch.from_numpy(inputs[ours]).clone()
            tensor = tensor.double() if tensor.is_floating_point() else tensor
            turned = self.contract.layout == "batch first" and not self.found.batch_first
            return tensor.transpose(0, 1) if turned and kind[0] in ("ids", "memory") else tensor
        # An attention mask that our graph makes inside: causal for the target, none for the rest.
        sizes = sizes_of(self.contract, Case("", dict(inputs), ""))
        mask = torch.zeros([sizes[axis] for axis in kind[1:]], dtype=torch.bool)
        return torch.ones_like(mask).triu(1) if plain == "tgt_mask" and self.contract.ids else mask


def originals(module: nn.Module, graphs: Mapping[str, Graph], place: str) -> dict[str, Run]:
    """By graph, how the original is run beside it; graphs that it has no method for are left out.

    Args:
        module: the original, in evaluation mode, with the weights of the checkpoint.
        graphs: ours.
        place: ``package.module:build``, for the report.

    Raises:
        OptionError: where no graph can be held against it.
    """
    found: dict[str, Run] = {}
    reasons = []
    for name, graph in graphs.items():
        method = METHODS.get(name)
        if method is None or len(graph.contract.outputs) != 1:
            continue
        try:
            with plain_torch():
                taken = _usual(module, method, graph)
        except OptionError as error:
            reasons.append(error.message)
            continue
        original = Original(module, taken, graph.contract, place)
        if problem := original.misfit():
            reasons.append(problem)
            continue
        found[name] = Run(REFERENCE + place, partial(_open, original), original.takes, lifted=True, dimensions=False)
    if "full" not in found:
        raise OptionError(
            f"{place} cannot be held against the model: {'; '.join(reasons) or 'it has no forward'}",
            "give it forward(src, tgt, …) with the usual names: src_mask, tgt_mask, src_padding_mask and so on",
        )
    return found


def _open(original: Original, path: Path) -> Original:
    return original


def _usual(module: nn.Module, method: str, graph: Graph) -> InferredMethod:
    if method != FORWARD and not callable(getattr(module, method, None)):
        raise OptionError(f"it has no {method}", "give it one")
    if graph.contract.ids or graph.contract.layout == "batch first":
        width = next((int(str(spec.axes[-1])) for spec in graph.contract.inputs if spec.name == "memory"), 0)
        return infer_method(module, method, width)
    return InferredMethod(method, arguments_of(module, method), batch_first=False)  # float tensors: sequence first
