"""ONNX files of a few nodes, and their results in float64."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mytx.exporter.cases.case import Array
from mytx.exporter.runtimes.onnx_reference import OnnxReference

FLOAT, HALF, INT, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL
X = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 4)


def write(
    path: Path,
    nodes: list[onnx.NodeProto],
    weights: dict[str, Array] | None = None,
    *,
    inputs: Mapping[str, int] | None = None,
    output: int = FLOAT,
    opset: int = 18,
) -> Path:
    """A model from ``x`` to ``y``."""
    given = [helper.make_tensor_value_info(name, kind, None) for name, kind in (inputs or {"x": FLOAT}).items()]
    graph = helper.make_graph(
        nodes,
        "test",
        given,
        [helper.make_tensor_value_info("y", output, None)],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), path)
    return path


def lifted(path: Path, **inputs: Array) -> Any:
    (result,) = OnnxReference.open(path, lifted=True).run(inputs or {"x": X}).values()
    return result
