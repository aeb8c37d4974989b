"""Running ONNX files in onnxruntime."""

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
_DTYPES = {"tensor(float)": "float32", "tensor(double)": "float64"} | {  # from onnxruntime's names to numpy's
    f"tensor({name})": name
    for name in ("bool", "float16", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
}
_FATAL = 4  # log severity
MOST_THREADS = 256  # more would need minutes to start, and no machine has that many cores
_PROVIDER = "executionprovider"  # the end of the name of an execution provider


@dataclass(frozen=True)
class RuntimeOptions:
    """Options for running a graph.

    Attributes:
        level: graph optimisation level: ``off``, ``basic``, ``extended`` or ``all``.
        threads: number of threads; 0 lets the runtime choose.
        verbose: whether to show the runtime's own messages.
        providers: execution providers, the preferred one first; onnxruntime's names or short ones, in any case:
            ``CUDAExecutionProvider``, ``cuda``. Nodes that they do not support run on the CPU.
        disabled_optimizers: rewrites of onnxruntime's optimiser to leave out, by onnxruntime's names; unknown names
            have no effect.
    """

    level: str = "all"
    threads: int = 0
    verbose: bool = False
    providers: tuple[str, ...] = ("cpu",)
    disabled_optimizers: tuple[str, ...] = ()


def provider_names(names: Sequence[str]) -> list[str]:
    """onnxruntime's names of these execution providers, which may be given in short.

    Raises:
        OptionError: for a provider that this onnxruntime does not have.
    """
    available = onnxruntime.get_available_providers()
    known = {form: name for name in available for form in (name.lower(), name.lower().removesuffix(_PROVIDER))}
    for name in names:
        if name.lower() not in known:
            raise OptionError(f"onnxruntime has no execution provider {name!r}", f"choose from {', '.join(available)}")
    return list(dict.fromkeys(known[name.lower()] for name in names)) or ["CPUExecutionProvider"]


def check_threads(threads: int) -> None:
    """Check that ``threads`` is 0 to :data:`MOST_THREADS`; raise :class:`OptionError` if not."""
    if not 0 <= threads <= MOST_THREADS:
        raise OptionError(f"threads is {threads}", f"choose 1 to {MOST_THREADS}, or 0 to leave it to the runtime")


class OnnxRuntime:
    """A graph, open in onnxruntime."""

    def __init__(self, session: onnxruntime.InferenceSession, options: RuntimeOptions) -> None:
        self.session = session
        self.options = options

    @classmethod
    def open(
        cls, path: str | Path, options: RuntimeOptions | None = None, *, optimized: Path | None = None
    ) -> OnnxRuntime:
        """Load the file at ``path``.

        Args:
            path: the file.
            options: how to run it.
            optimized: if given, write the optimised graph to this file, and its weights to a file beside it.

        Raises:
            OptionError: for execution providers that this onnxruntime does not have, or cannot use here.
            Exception: any error of onnxruntime.
        """
        options = options or RuntimeOptions()
        providers = provider_names(options.providers)
        check_threads(options.threads)
        settings = onnxruntime.SessionOptions()
        settings.graph_optimization_level = LEVELS[options.level]
        settings.intra_op_num_threads = options.threads
        # Threads that spin while they wait take the CPU from everything else on the machine.
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if not options.verbose:
            settings.log_severity_level = _FATAL  # errors arrive as exceptions
        if optimized is not None:
            settings.optimized_model_filepath = str(optimized)
            weights = f"{optimized.name}.weights"  # a separate file, as an ONNX file can have 2 GB at most
            settings.add_session_config_entry("session.optimized_model_external_initializers_file_name", weights)
        session = onnxruntime.InferenceSession(
            str(path), settings, providers=providers, disabled_optimizers=list(options.disabled_optimizers)
        )
        # onnxruntime drops a provider whose libraries are missing without an error, and runs everything on the CPU.
        if unused := [name for name in providers if name not in session.get_providers()]:
            raise OptionError(f"onnxruntime cannot use {unused[0]} here", "its libraries or its device are missing")
        return cls(session, options)

    @staticmethod
    def label(options: RuntimeOptions) -> str:
        """The runtime's name in reports: ``onnxruntime, level basic, 1 thread``."""
        level = "" if options.level == "all" else f", level {options.level}"
        return f"onnxruntime{level}{', 1 thread' if options.threads == 1 else ''}"

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, for an array for each input."""
        names = [output.name for output in self.session.get_outputs()]
        return {
            name: np.asarray(value) for name, value in zip(names, self.session.run(names, dict(inputs)), strict=True)
        }

    def value(self, array: Array) -> onnxruntime.OrtValue:
        """An array as an ``OrtValue``, for ``session.run_with_ort_values``, which copies nothing."""
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))

    def describe(self) -> Description:
        """onnxruntime, its version, and the tensors of the graph. Initializers that callers may override are inputs."""
        inputs = [*self.session.get_inputs(), *self.session.get_overridable_initializers()]
        return Description(
            self.label(self.options),
            onnxruntime.__version__,
            {arg.name: (_DTYPES.get(arg.type, arg.type), tuple(arg.shape)) for arg in inputs},
            {arg.name: (_DTYPES.get(arg.type, arg.type), tuple(arg.shape)) for arg in self.session.get_outputs()},
        )
