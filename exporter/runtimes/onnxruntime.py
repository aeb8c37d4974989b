"""ONNX files in onnxruntime, as users run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from ..cases.case import Array
from ..errors import OptionError
from .runtime import Description

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
