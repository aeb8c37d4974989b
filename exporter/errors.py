"""Errors that the user can fix, each with the next step. The command line exits with 2 for them."""

from __future__ import annotations

from ..models.errors import CheckpointError, MytxError

__all__ = ["BundleError", "CheckpointError", "ExportError", "MytxError", "OptionError", "first_line"]


class OptionError(MytxError):
    """An option's value that does not fit the model."""


class ExportError(MytxError):
    """A graph that could not be exported, or does not match its contract."""


class BundleError(MytxError):
    """A bundle that cannot be written or read."""


def first_line(error: BaseException) -> str:
    """The first line of the message of ``error``, or its type if the message is empty."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__
