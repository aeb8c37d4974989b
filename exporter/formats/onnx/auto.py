"""ONNX files with integer products, as in int8, and some of float32: those without which the task does not hold."""

from __future__ import annotations

from functools import partial

from ..table import FORMATS
from .int8 import Int8, needs
from .quantising import export_quantised

__all__ = ["export", "needs"]

export = partial(export_quantised, FORMATS["auto"], Int8)
