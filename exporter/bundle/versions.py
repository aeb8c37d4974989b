"""The versions of mytx and of the libraries that it uses."""

from __future__ import annotations

import contextlib
import platform
from importlib import metadata

TOOLS = ("mytx", "torch", "onnx", "onnxscript", "onnxruntime", "numpy")


def version() -> str:
    """The version of mytx."""
    return metadata.version("mytx")


def versions() -> dict[str, str]:
    """The version of each library that is installed, and of Python. It imports none of them."""
    found = {}
    for name in TOOLS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found | {"python": platform.python_version()}
