"""Memory, where a model is large."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from pathlib import Path

LARGE = 1.5e9  # bytes: below it, cycles may wait for Python's own collector
PAGE = 4096


def release_memory(*, cycles: bool = True) -> None:
    """Give back what the last stage held: graphs are full of cycles, and glibc keeps freed tensors for later.

    Args:
        cycles: look for cycles, where this process has become large. It takes a tenth of a second to a second where
            torch is loaded, and an export of a small model would spend more on it than on its proof.
    """
    if cycles and _resident() > LARGE:
        gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _resident() -> float:
    """The memory of this process in bytes; where that is not told, as much as can be."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    except (OSError, ValueError, IndexError):
        return float("inf")
