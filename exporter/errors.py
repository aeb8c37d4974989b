"""Errors that a user can fix. Each has a hint with the next step; the command line exits with 2."""

from __future__ import annotations

from ..models.errors import CheckpointError, MytxError

__all__ = ["BundleError", "CheckpointError", "ExportError", "MytxError", "OptionError", "first_line"]


class OptionError(MytxError):
    """An option has a value that does not fit the model."""


class ExportError(MytxError):
    """A graph cannot be exported, or its file differs from its contract."""


class BundleError(MytxError):
    """A bundle cannot be written or read."""


def first_line(error: BaseException) -> str:
    """The first line of the message of ``error``, or the name of its type if it has no message."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__
