"""The threads of numpy's own products. No torch here.

``onnx.reference`` makes thousands of products that are far too small for two threads. OpenBLAS starts them all the
same, and while they wait for each other they spin: beside other work that took four times the CPU and the time.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

NAMES = [(prefix, suffix) for prefix in ("scipy_", "") for suffix in ("64_", "")]  # as numpy's wheels are built


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within the block numpy's products run on one thread, if numpy came with an OpenBLAS; without, nothing happens."""
    found = _openblas()
    if found is None:
        yield
        return
    get, put = found
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)


@cache
def _openblas() -> tuple[Any, Any] | None:
    """What tells and what sets the number of threads."""
    folder = Path(np.__file__).parent
    for path in (*folder.parent.glob("numpy.libs/*openblas*"), *folder.glob(".dylibs/*openblas*")):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(str(path))
            for prefix, suffix in NAMES:
                with contextlib.suppress(AttributeError):
                    names = (f"{prefix}openblas_{verb}_num_threads{suffix}" for verb in ("get", "set"))
                    get, put = (getattr(library, name) for name in names)
                    get.restype, put.argtypes, put.restype = ctypes.c_int, [ctypes.c_int], None
                    return get, put
    return None
