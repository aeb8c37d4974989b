"""All planted faults."""

from __future__ import annotations

import fault_auto
import fault_int4
import fault_int8
import fault_interfaces
import fault_layers
import fault_masks
import fault_models
import fault_rewrites
import fault_runtimes
import fault_searches
import fault_steps
import fault_storage
import fault_tracing
import fault_values
import fault_weights
from fault import Fault

FAULTS: tuple[Fault, ...] = tuple(
    entry
    for module in (
        fault_weights,
        fault_storage,
        fault_masks,
        fault_values,
        fault_interfaces,
        fault_rewrites,
        fault_tracing,
        fault_layers,
        fault_runtimes,
        fault_models,
        fault_steps,
        fault_searches,
        fault_int8,
        fault_int4,
        fault_auto,
    )
    for entry in module.FAULTS
)
