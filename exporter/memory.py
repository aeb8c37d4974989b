"""Memory, where a model is large."""

from __future__ import annotations

import contextlib
import ctypes
import gc


def release_memory(*, cycles: bool = True) -> None:
    """Give back what the last stage held: graphs are full of cycles, and glibc keeps freed tensors for later.

    Args:
        cycles: look for cycles, which takes a tenth of a second where torch is loaded.
    """
    if cycles:
        gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
