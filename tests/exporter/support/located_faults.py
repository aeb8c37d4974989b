"""Faults in files for tests of ``locate``, and the cases that it runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

import fault_interfaces
from exported_models import Exported
from mytx.exporter.cases.case import Case
from planting import Fault, change

BATCH_FROZEN = fault_interfaces.frozen_in_a_reshape(fault_interfaces.SELF, 1, 2)


def cases(exported: Exported, name: str) -> list[Case]:
    """Small ones of different lengths, with rows of padding and dead rows, and the longest."""
    own = [case for case in exported.plan(name)[:28] if sum(array.size for array in case.inputs.values()) < 1500]
    return own[:6] + own[15:]


def plant(fault: Fault, exported: Exported, name: str, folder: Path) -> Path:
    model = onnx.load(exported.path(name))
    fault(model.graph)
    onnx.save(model, folder / f"{name}.onnx")
    return folder / f"{name}.onnx"


def weight_times(name: str, factor: float) -> Fault:
    return lambda graph: change(graph, name, lambda values: values * np.float32(factor))
