"""Things that can run a graph. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import onnxruntime

from ..cases.plan import Array
from ..contracts.contract import Contract
from ..errors import OptionError

LEVELS = {
    "off": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_DTYPES = {"tensor(float)": "float32", "tensor(double)": "float64"} | {  # numpy's names, by onnxruntime's
    f"tensor({name})": name
    for name in ("bool", "float16", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
}
_FATAL = 4
MOST_THREADS = 256  # more cost minutes to start, and no machine has the cores
_PROVIDER = "executionprovider"


@dataclass(frozen=True)
class RuntimeOptions:
    """How a graph is run.

    Attributes:
        level: graph optimisation: ``off``, ``basic``, ``extended`` or ``all``.
        threads: 0 leaves it to the runtime.
        verbose: whether the runtime's own messages reach the terminal.
        providers: execution providers, the one to be preferred first; names as onnxruntime's or short, whatever the
            case: ``CUDAExecutionProvider``, ``cuda``. What they cannot do is done on the CPU.
        disabled_optimizers: rewrites of onnxruntime's optimiser to be left out, by its own names; one that it does not
            know changes nothing.
    """

    level: str = "all"
    threads: int = 0
    verbose: bool = False
    providers: tuple[str, ...] = ("cpu",)
    disabled_optimizers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Description:
    """What a runtime says of the graph that it has open: for each tensor its dtype and dimensions."""

    runtime: str
    version: str
    inputs: dict[str, tuple[str, tuple[str | int, ...]]] = field(default_factory=dict)
    outputs: dict[str, tuple[str, tuple[str | int, ...]]] = field(default_factory=dict)


def described(contract: Contract, runtime: str, version: str) -> Description:
    """The description of a runtime that takes and gives what ``contract`` says."""
    inputs, outputs = (
        {spec.name: (spec.dtype, spec.labels) for spec in part} for part in (contract.inputs, contract.outputs)
    )
    return Description(runtime, version, inputs, outputs)


def provider_names(names: Sequence[str]) -> list[str]:
    """onnxruntime's own names of execution providers.

    Raises:
        OptionError: for one that it does not have.
    """
    available = onnxruntime.get_available_providers()
    known = {form: name for name in available for form in (name.lower(), name.lower().removesuffix(_PROVIDER))}
    for name in names:
        if name.lower() not in known:
            raise OptionError(f"onnxruntime has no execution provider {name!r}", f"choose from {', '.join(available)}")
    return list(dict.fromkeys(known[name.lower()] for name in names)) or ["CPUExecutionProvider"]


def check_threads(threads: int) -> None:
    """Raise :class:`OptionError` for a number of threads that no machine has."""
    if not 0 <= threads <= MOST_THREADS:
        raise OptionError(f"threads is {threads}", f"choose 1 to {MOST_THREADS}, or 0 to leave it to the runtime")


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
        return _composed(self.encoder, "decoder(encoder)", self.contract)


class Stepped:
    """The full graph by way of prefill and step: the target one position at a time, with the past kept.

    After each step the batch is turned round, and the past with it, as a beam search reorders it.
    """

    def __init__(self, prefill: Runtime, step: Runtime, contract: Contract) -> None:
        self.prefill = prefill
        self.step = step
        self.contract = contract

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The logits of every position; padding in the target is not looked at."""
        tgt, padding = inputs["tgt"], inputs["src_key_padding_mask"]
        first = self.prefill.run({"src": inputs["src"], "src_key_padding_mask": padding})
        caches = {name: array for name, array in first.items() if name.startswith("cross_")}
        # The start of prefill is the model's own, the target's may be another: so the past begins empty.
        past = {name: _emptied(name, array) for name, array in first.items() if name.startswith("past_")}
        logits = []
        for position in range(tgt.shape[1]):
            turned = position % 2 == 1
            here = np.s_[::-1] if turned else np.s_[:]
            now = {"tgt": tgt[:, position : position + 1], "src_key_padding_mask": padding, **caches}
            outputs = self.step.run({name: array[here].copy() for name, array in now.items()} | past)
            logits.append(outputs.pop("logits")[here])
            past = {name.replace("present_", "past_", 1): array[::-1].copy() for name, array in outputs.items()}
        return {"logits": np.concatenate(logits, axis=1)}

    def describe(self) -> Description:
        """The two runtimes, with the tensors of the full contract."""
        return _composed(self.step, "N cached steps", self.contract)


def _emptied(name: str, cache: Array) -> Array:
    """A key ``[.., P]`` or value ``[.., P, D]`` without its positions."""
    return cache[..., :0] if "_key_" in name else cache[..., :0, :]


def _composed(runtime: Runtime, how: str, contract: Contract) -> Description:
    inner = runtime.describe()
    return described(contract, f"{inner.runtime}, {how}", inner.version)


class OnnxRuntime:
    """A graph in onnxruntime."""

    def __init__(self, session: onnxruntime.InferenceSession, options: RuntimeOptions) -> None:
        self.session = session
        self.options = options

    @classmethod
    def open(
        cls, path: str | Path, options: RuntimeOptions | None = None, *, optimized: Path | None = None
    ) -> OnnxRuntime:
        """Load the file at ``path``; whatever onnxruntime raises goes through.

        Args:
            path: the file.
            options: how it is run.
            optimized: write what the optimiser made of it to this file, and its weights to one beside it.

        Raises:
            OptionError: for execution providers that this onnxruntime does not have, or cannot use here.
        """
        options = options or RuntimeOptions()
        providers = provider_names(options.providers)
        check_threads(options.threads)
        settings = onnxruntime.SessionOptions()
        settings.graph_optimization_level = LEVELS[options.level]
        settings.intra_op_num_threads = options.threads
        # Threads that spin while they wait starve whatever else the machine is doing.
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if not options.verbose:
            settings.log_severity_level = _FATAL  # what matters arrives as an exception
        if optimized is not None:
            settings.optimized_model_filepath = str(optimized)
            weights = f"{optimized.name}.weights"  # beside it, as a file of ONNX holds no more than 2 GB
            settings.add_session_config_entry("session.optimized_model_external_initializers_file_name", weights)
        session = onnxruntime.InferenceSession(
            str(path), settings, providers=providers, disabled_optimizers=list(options.disabled_optimizers)
        )
        # One whose libraries are missing is left out without an error, and everything would run on the CPU.
        if unused := [name for name in providers if name not in session.get_providers()]:
            raise OptionError(f"onnxruntime cannot use {unused[0]} here", "its libraries or its device are missing")
        return cls(session, options)

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

    def value(self, array: Array) -> onnxruntime.OrtValue:
        """An array as onnxruntime holds it, for ``session.run_with_ort_values``, which copies nothing."""
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))

    def describe(self) -> Description:
        """onnxruntime, its version, and the tensors of the graph; a weight that callers may override is an input."""
        inputs = [*self.session.get_inputs(), *self.session.get_overridable_initializers()]
        return Description(
            self.label(self.options),
            onnxruntime.__version__,
            {arg.name: (_DTYPES.get(arg.type, arg.type), tuple(arg.shape)) for arg in inputs},
            {arg.name: (_DTYPES.get(arg.type, arg.type), tuple(arg.shape)) for arg in self.session.get_outputs()},
        )
