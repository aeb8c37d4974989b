"""From a model to graphs, files, proof and a bundle. Nothing is imported before it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .check import BundleCheck as BundleCheck
    from .check import verify_bundle as verify_bundle
    from .errors import BundleError as BundleError
    from .errors import ExportError as ExportError
    from .errors import MytxError as MytxError
    from .errors import OptionError as OptionError
    from .generating import Generation as Generation
    from .generating import Hypothesis as Hypothesis
    from .opened import Bundle as Bundle
    from .opened import open_bundle as open_bundle
    from .pipeline import ExportResult as ExportResult
    from .pipeline import export_bundle as export_bundle
    from .report import ParityReport as ParityReport
    from .runtimes import RuntimeOptions as RuntimeOptions
    from .subject import custom_model as custom_model

_HOME = {
    "Bundle": "opened",
    "BundleCheck": "check",
    "BundleError": "errors",
    "ExportError": "errors",
    "ExportResult": "pipeline",
    "Generation": "generating",
    "Hypothesis": "generating",
    "MytxError": "errors",
    "OptionError": "errors",
    "ParityReport": "report",
    "RuntimeOptions": "runtimes",
    "custom_model": "subject",
    "export_bundle": "pipeline",
    "open_bundle": "opened",
    "verify_bundle": "check",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
