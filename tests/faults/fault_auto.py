"""Faults of files in auto, in which some weights are integers and others stay float32. Others are in ``fault_int8``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from exported_models import kept_of
from fault import quantised_fault
from fault_int8 import EVERYWHERE, LINEAR, changed, one_scale_off
from mytx.exporter.formats.quantisation import SCALE
from mytx.exporter.formats.table import ExportOptions
from subject import Subject

INTEGERS = "my_transformer.decoder.layers.1.linear1.weight"  # LINEAR is float32 here


def assigned_otherwise(kept: Callable[[frozenset[str]], frozenset[str]]) -> Callable[[Subject], None]:
    """A file that is right in all but which of its weights are integers."""

    def plant(subject: Subject) -> None:
        (subject.folder / f"{subject.graph}.onnx").write_bytes(subject.exported.path(subject.graph).read_bytes())
        declared = kept_of(subject.exported.model)
        assert kept(declared) != declared
        subject.known.load_exporter().export(
            subject.exported.every, subject.graph, subject.folder, ExportOptions(kept=kept(declared))
        )

    return plant


def one_value_off(values: np.ndarray) -> np.ndarray:
    values[3, 2] *= np.float32(1.01)
    return values


FAULTS = tuple(
    quantised_fault("auto", f"{name}, auto", plant, checks)
    for name, plant, checks in (
        ("a scale off by 1 %", changed(INTEGERS + SCALE, one_scale_off), EVERYWHERE),
        ("a layer in integers that is declared float32", assigned_otherwise(lambda kept: kept - {LINEAR}), EVERYWHERE),
        (
            "a layer in float32 that is declared integers",
            assigned_otherwise(lambda kept: kept | {INTEGERS}),
            EVERYWHERE,
        ),
        ("all in integers", assigned_otherwise(lambda kept: frozenset()), EVERYWHERE),
        ("one weight off by 1 % in a layer in float32", changed(LINEAR, one_value_off), EVERYWHERE),
    )
)
