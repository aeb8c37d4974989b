"""A small contract and its cases, for tests of onnxruntime's optimiser."""

from __future__ import annotations

import numpy as np

from mytx.exporter.cases.case import Case
from mytx.exporter.contracts.contract import Axis, Contract, TensorSpec

WIDTH = 8
X = TensorSpec("x", "float32", (Axis("batch"), WIDTH))
Y = TensorSpec("y", "float32", (Axis("batch"), WIDTH))
CONTRACT = Contract("encoder", (X,), (Y,), "batch first")
CASES = [
    Case(
        f"{n:02d}", {"x": np.random.default_rng(n).standard_normal((n + 1, WIDTH)).astype(np.float32)}, f"batch {n + 1}"
    )
    for n in range(4)
]
