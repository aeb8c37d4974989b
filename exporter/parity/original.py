"""``--reference``: comparing the class that a checkpoint was trained in (the original) with the model that mytx made.

Both run in float64, almost without rounding. This verifies the reading of the checkpoint, with all assumed settings: a
wrong activation, norm order or head count shows here and nowhere else, because files are compared with mytx's model.
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

# If our graph has no input of this name, the original's argument gets our input of that name.
STANDS_IN = {"memory_key_padding_mask": "src_key_padding_mask"}


@dataclass(frozen=True)
class Original:
    """A graph in its original implementation: the user's class, as a runtime.

    Attributes:
        module: the user's model, in float32.
        inferred: the method that computes the graph, and its arguments.
        contract: contract of our graph.
        place: ``package.module:build``, which made the module.
    """

    module: nn.Module
    inferred: InferredMethod
    contract: Contract
    place: str

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The output of the original in float64, with the dimensions in our order."""
        (result,) = self.run_all([inputs])
        if isinstance(result, Exception):
            raise result
        return result

    def run_all(self, many: Sequence[Mapping[str, Array]]) -> list[dict[str, Array] | Exception]:
        """As :meth:`run` for each case in ``many``; for a case that fails, its exception."""
        results: list[dict[str, Array] | Exception] = []
        with plain_torch(), in_float64(self.module), default_dtype_of(self.module), torch.inference_mode():
            for inputs in many:
                try:
                    results.append(self._output(inputs))
                except Exception as error:
                    results.append(error)
        return results

    def _output(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        given = {argument: self._argument(usual, inputs) for argument, usual in self.inferred.arguments.items()}
        output = method_of(self.module, self.inferred.method)(**given)
        (spec,) = self.contract.outputs
        if not isinstance(output, Tensor):
            raise TypeError(f"{self.inferred.method} gives a {type(output).__name__}")
        if output.dtype != torch.float64:
            raise TypeError(
                f"{self.inferred.method} gives {output.dtype} from weights in float64: has it .float() in it?"
            )
        return {spec.name: (output.transpose(0, 1) if self._transposed and output.dim() == 3 else output).numpy()}

    @property
    def _transposed(self) -> bool:
        """Whether the original has batch and length in the other order than our graph."""
        return self.contract.layout == "batch first" and not self.inferred.batch_first

    def takes(self, case: Case) -> bool:
        """Whether the original gives a right result for a case: it has an argument for every mask that hides something,
        and every query may attend to some position, because PyTorch's own attention gives NaN for others.
        """
        if any(spec.name not in case.inputs for spec in self.contract.inputs):
            return False  # a case for formats with optional masks
        given = {STANDS_IN.get(usual, usual) if usual not in case.inputs else usual for usual in self._masks()}
        for spec in self.contract.inputs:
            mask = case.inputs[spec.name]
            if spec.role == "padding":
                hidden = hides(mask)
                if hidden.any() and (spec.name not in given or hidden.all(axis=1).any()):
                    return False
                # The original may compute a mask from the padding id.
                if spec.name not in given and self._has_padding_ids(spec, case):
                    return False
                # With a causal mask the first position can attend to itself only, so it must not be hidden.
                if spec.name == "tgt_key_padding_mask" and hidden[:, 0].any():
                    return False
            elif spec.role == "attention":
                hidden = hides(mask)
                if (mask != 0).any() and (spec.name not in given or hidden.all(axis=-1).any()):
                    return False
        return case.group == "shapes" or small(case)

    def _has_padding_ids(self, mask: TensorSpec, case: Case) -> bool:
        hidden_by = {spec.name for spec in self.contract.inputs if spec.role == "ids" and mask.name in spec.hidden_by}
        return any((case.inputs[name] == self.contract.ids.get("pad")).any() for name in hidden_by)

    def describe(self) -> Description:
        """The original and PyTorch's version, with the tensors of the contract in float64."""
        return described(self.contract.lifted(), self.place, torch.__version__)

    def misfit(self) -> str:
        """Why the original cannot be compared with our graph; empty if it can.

        It may fail, or give another shape: the ``decode`` of some models ends before the logits.
        """
        inputs = example(self.contract).inputs
        given = {
            spec.name: np.zeros_like(inputs[spec.name]) if spec.role == "padding" else inputs[spec.name]
            for spec in self.contract.inputs
        }
        try:
            ((name, found),) = self.run(given).items()
        except Exception as error:
            return f"{self.inferred.method} fails: {first_line(error)}"
        expected = self.contract.outputs[0].shape(sizes_of(self.contract, Case("", given, "")))
        fits = found.shape == expected
        return "" if fits else f"{self.inferred.method} gives {list(found.shape)} for {name} {list(expected)}"

    def _masks(self) -> list[str]:
        return [usual for usual in self.inferred.arguments.values() if NAMES[usual][0] in ("padding", "attention")]

    def _argument(self, usual: str, inputs: Mapping[str, Array]) -> Any:
        """The value of the original's argument with this name in :data:`NAMES`."""
        kind = NAMES[usual]
        ours = usual if usual in inputs else STANDS_IN.get(usual, usual)
        if ours in inputs:
            tensor = torch.from_numpy(inputs[ours]).clone()
            tensor = tensor.double() if tensor.is_floating_point() else tensor
            return tensor.transpose(0, 1) if self._transposed and kind[0] in ("ids", "memory") else tensor
        # An attention mask that our graph creates inside: causal for the target, otherwise nothing is hidden.
        sizes = sizes_of(self.contract, Case("", dict(inputs), ""))
        mask = torch.zeros([sizes[axis] for axis in kind[1:]], dtype=torch.bool)
        return torch.ones_like(mask).triu(1) if usual == "tgt_mask" and self.contract.ids else mask


def originals(module: nn.Module, graphs: Mapping[str, Graph], place: str) -> dict[str, Run]:
    """For each graph the way to run the original; graphs that the original has no method for are left out.

    Args:
        module: the original, in evaluation mode, with the weights of the checkpoint.
        graphs: our graphs, by name.
        place: ``package.module:build``, for the report.

    Raises:
        OptionError: if the graph ``full`` cannot be compared with the original.
    """
    found: dict[str, Run] = {}
    reasons = []
    for name, graph in graphs.items():
        method = METHODS.get(name)
        if method is None or len(graph.contract.outputs) != 1:
            continue
        try:
            with plain_torch():
                inferred = _infer(module, method, graph)
        except OptionError as error:
            reasons.append(error.message)
            continue
        original = Original(module, inferred, graph.contract, place)
        if problem := original.misfit():
            reasons.append(problem)
            continue
        found[name] = Run(REFERENCE + place, partial(_open, original), original.takes, lifted=True, dimensions=False)
    if "full" not in found:
        raise OptionError(
            f"{place} cannot be compared with the model: {'; '.join(reasons) or 'it has no forward'}",
            "give it forward(src, tgt, …) with the usual names: src_mask, tgt_mask, src_padding_mask and so on",
        )
    return found


def _open(original: Original, path: Path) -> Original:
    return original


def _infer(module: nn.Module, method: str, graph: Graph) -> InferredMethod:
    if method != FORWARD and not callable(getattr(module, method, None)):
        raise OptionError(f"it has no {method}", "give it one")
    if graph.contract.ids or graph.contract.layout == "batch first":
        width = next((int(str(spec.axes[-1])) for spec in graph.contract.inputs if spec.name == "memory"), 0)
        return infer_method(module, method, width)
    return InferredMethod(method, arguments_of(module, method), batch_first=False)  # float tensors: sequence first
