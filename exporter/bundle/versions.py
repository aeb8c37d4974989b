"""Which mytx this is, and what it works with."""

from __future__ import annotations

import contextlib
import platform
from importlib import metadata

TOOLS = ("mytx", "torch", "onnx", "onnxscript", "onnxruntime", "numpy")


def version() -> str:
    """The version of the installed distribution."""
    return metadata.version("mytx")


def versions() -> dict[str, str]:
    """The version of each tool that is installed, and of Python; nothing is imported."""
    found = {}
    for name in TOOLS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found | {"python": platform.python_version()}
