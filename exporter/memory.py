"""Memory, where a model is large."""

from __future__ import annotations

import contextlib
import ctypes
import gc


def release_memory() -> None:
    """Give back what the last stage held: graphs are full of cycles, and glibc keeps freed tensors for later."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
