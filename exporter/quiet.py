"""Keeping the libraries' own messages from people who did not ask for them."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator


def is_quiet() -> bool:
    """Whether :func:`quiet` keeps messages back."""
    return logging.root.manager.disable >= logging.CRITICAL


@contextlib.contextmanager
def quiet(verbose: bool = False) -> Iterator[None]:
    """Keep the warnings and log lines of the libraries from the user, unless they asked for them."""
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
