"""From a model to graphs, files, proof and a bundle. Nothing is imported before it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bundle.generation import Generation as Generation
    from .bundle.generation import Hypothesis as Hypothesis
    from .bundle.open import Bundle as Bundle
    from .bundle.open import open_bundle as open_bundle
    from .errors import BundleError as BundleError
    from .errors import ExportError as ExportError
    from .errors import MytxError as MytxError
    from .errors import OptionError as OptionError
    from .graphs.exportable import custom_model as custom_model
    from .parity.report import ParityReport as ParityReport
    from .pipeline import ExportResult as ExportResult
    from .pipeline import export_bundle as export_bundle
    from .quantizing import quantize_bundle as quantize_bundle
    from .runtimes.onnxruntime import RuntimeOptions as RuntimeOptions
    from .verification import BundleCheck as BundleCheck
    from .verification import verify_bundle as verify_bundle

_HOME = {
    "Bundle": "bundle.open",
    "BundleCheck": "verification",
    "BundleError": "errors",
    "ExportError": "errors",
    "ExportResult": "pipeline",
    "Generation": "bundle.generation",
    "Hypothesis": "bundle.generation",
    "MytxError": "errors",
    "OptionError": "errors",
    "ParityReport": "parity.report",
    "RuntimeOptions": "runtimes.onnxruntime",
    "custom_model": "graphs.exportable",
    "export_bundle": "pipeline",
    "open_bundle": "bundle.open",
    "quantize_bundle": "quantizing",
    "verify_bundle": "verification",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
