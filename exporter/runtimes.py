"""Things that can run a graph. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import onnxruntime

from .contract import Contract
from .plan import Array

LEVELS = {
    "off": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_DTYPES = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(bool)": "bool"}
_FATAL = 4


@dataclass(frozen=True)
class RuntimeOptions:
    """How a graph is run.

    Attributes:
        level: graph optimisation: ``off``, ``basic``, ``extended`` or ``all``.
        threads: 0 leaves it to the runtime.
        verbose: whether the runtime's own messages reach the terminal.
    """

    level: str = "all"
    threads: int = 0
    verbose: bool = False


@dataclass(frozen=True)
class Description:
    """What a runtime says of the graph that it has open: for each tensor its dtype and dimensions."""

    runtime: str
    version: str
    inputs: dict[str, tuple[str, tuple[str | int, ...]]] = field(default_factory=dict)
    outputs: dict[str, tuple[str, tuple[str | int, ...]]] = field(default_factory=dict)


class Runtime(Protocol):
    """A graph, open in something that runs it."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, for an array for each input."""
        ...

    def describe(self) -> Description:
        """The runtime, and what it says of the graph."""
        ...


def run_all(runtime: Runtime, many: Sequence[Mapping[str, Array]]) -> list[dict[str, Array] | Exception]:
    """The outputs for each set of inputs, or what was raised instead: one that fails does not stop the others."""
    if hasattr(runtime, "run_all"):  # faster all at once
        return runtime.run_all(many)
    results: list[dict[str, Array] | Exception] = []
    for inputs in many:
        try:
            results.append(runtime.run(inputs))
        except Exception as error:
            results.append(error)
    return results


class Composed:
    """The full graph by way of the encoder and the decoder: the first one's output is the second one's memory."""

    def __init__(self, encoder: Runtime, decoder: Runtime, contract: Contract) -> None:
        self.encoder = encoder
        self.decoder = decoder
        self.contract = contract

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The decoder's outputs."""
        front, back = set(self.encoder.describe().inputs), set(self.decoder.describe().inputs)
        (memory,) = self.encoder.run({name: array for name, array in inputs.items() if name in front}).values()
        given = {name: array for name, array in inputs.items() if name in back} | {"memory": memory}
        # A model on ids has one padding mask for the source, wherever it is read.
        own = {spec.name for spec in self.contract.inputs}
        if "memory_key_padding_mask" in back - own and "src_key_padding_mask" in inputs:
            given["memory_key_padding_mask"] = inputs["src_key_padding_mask"]
        return self.decoder.run(given)

    def describe(self) -> Description:
        """The two runtimes, with the tensors of the full contract."""
        inner = self.encoder.describe()
        specs = (self.contract.inputs, self.contract.outputs)
        inputs, outputs = ({spec.name: (spec.dtype, spec.labels) for spec in part} for part in specs)
        return Description(f"{inner.runtime}, decoder(encoder)", inner.version, inputs, outputs)


class OnnxRuntime:
    """A graph in onnxruntime, on the CPU."""

    def __init__(self, session: onnxruntime.InferenceSession, options: RuntimeOptions) -> None:
        self.session = session
        self.options = options

    @classmethod
    def open(cls, path: str | Path, options: RuntimeOptions | None = None) -> OnnxRuntime:
        """Load the file at ``path``; whatever onnxruntime raises goes through."""
        options = options or RuntimeOptions()
        settings = onnxruntime.SessionOptions()
        settings.graph_optimization_level = LEVELS[options.level]
        settings.intra_op_num_threads = options.threads
        # Threads that spin while they wait starve whatever else the machine is doing.
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if not options.verbose:
            settings.log_severity_level = _FATAL  # what matters arrives as an exception
        return cls(onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"]), options)

    @staticmethod
    def label(options: RuntimeOptions) -> str:
        """The runtime's name in a report."""
        level = "" if options.level == "all" else f", level {options.level}"
        return f"onnxruntime{level}{', 1 thread' if options.threads == 1 else ''}"

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, for an array for each input."""
        names = [output.name for output in self.session.get_outputs()]
        return {
            name: np.asarray(value) for name, value in zip(names, self.session.run(names, dict(inputs)), strict=True)
        }

    def describe(self) -> Description:
        """onnxruntime, its version, and the tensors of the graph; a weight that callers may override is an input."""
        inputs = [*self.session.get_inputs(), *self.session.get_overridable_initializers()]
        return Description(
            self.label(self.options),
            onnxruntime.__version__,
            {arg.name: (_DTYPES.get(arg.type, arg.type), tuple(arg.shape)) for arg in inputs},
            {arg.name: (_DTYPES.get(arg.type, arg.type), tuple(arg.shape)) for arg in self.session.get_outputs()},
        )
