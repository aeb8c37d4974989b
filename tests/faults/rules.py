"""What two other rules say of the same file in the same runtime, at the inputs that it was exported with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch.onnx._internal.exporter._verification import VerificationInfo

from mytx.exporter.cases.case import Array
from mytx.exporter.cases.plan import example
from mytx.exporter.graphs.graph import Graph
from mytx.exporter.runtimes.runtime import Runtime

Open = Callable[[], Runtime]
LARGEST_ABSOLUTE, LARGEST_RELATIVE = 5e-3, 1e-1
TOLERANCE = 1e-5


def torch_verify_flags(open_runtime: Open, graph: Graph) -> bool:
    """Whether ``torch.onnx.export(..., verify=True)`` would say something.

    As torch 2.13 has it: ``torch/onnx/_internal/exporter/_verification.py`` (``verify_onnx_program``) runs the model
    and the file once, on the example inputs, which are given to the file by their order, and pairs the outputs by
    their order; ``_core.py`` (``export``, step 6) logs a warning where ``max_abs_diff >= 5e-3`` or
    ``max_rel_diff >= 1e-1``, both computed by ``VerificationInfo``, which is used here. It never fails the export: a
    warning counts as a catch here, and so does a file that onnxruntime does not run, which it only notes in a report.
    The ONNX checker that it calls before does nothing (``onnxscript._framework_apis.torch_2_5.check_model``).
    """
    try:
        runtime = open_runtime()
        names = runtime.describe().inputs
        outputs = runtime.run(dict(zip(names, example(graph.contract).inputs.values(), strict=False)))
        infos = [
            VerificationInfo.from_tensors("", torch.from_numpy(expected), torch.from_numpy(np.array(actual)))
            for expected, actual in zip(eager(graph), outputs.values(), strict=False)
        ]
    except Exception:
        return True
    return any(info.max_abs_diff >= LARGEST_ABSOLUTE or info.max_rel_diff >= LARGEST_RELATIVE for info in infos)


def allclose_flags(open_runtime: Open, graph: Graph) -> bool:
    """Whether ``np.allclose(actual, expected, atol=1e-5)`` is False at the traced shape: what most scripts do."""
    try:
        outputs = open_runtime().run(example(graph.contract).inputs)
        pairs = zip(outputs.values(), eager(graph), strict=False)
        close = [np.allclose(actual, expected, atol=TOLERANCE) for actual, expected in pairs]
    except Exception:
        return True
    return not (close and all(close))


def eager(graph: Graph) -> list[Array]:
    """The model's own outputs, in float32, at the inputs that the graph is exported with."""
    inputs = {name: torch.from_numpy(array) for name, array in example(graph.contract).inputs.items()}
    with torch.inference_mode():
        return [output.numpy() for output in graph.compute(inputs)]
