"""Hiding the warnings and log messages of libraries."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator


def is_quiet() -> bool:
    """Whether :func:`quiet` hides messages now."""
    return logging.root.manager.disable >= logging.CRITICAL


@contextlib.contextmanager
def quiet(verbose: bool = False) -> Iterator[None]:
    """Hide the warnings and log messages of libraries, unless ``verbose``."""
    if verbose:
        yield
        return
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
