"""Errors that a person can do something about, each with the next step. The command line exits with 2 for them."""

from __future__ import annotations

from ..models.errors import CheckpointError, MytxError

__all__ = ["BundleError", "CheckpointError", "ExportError", "MytxError", "OptionError", "first_line"]


class OptionError(MytxError):
    """An option's value that does not fit the model."""


class ExportError(MytxError):
    """A graph that could not be made, or came out other than its contract says."""


class BundleError(MytxError):
    """A bundle that cannot be written, or read."""


def first_line(error: BaseException) -> str:
    """The first line of what ``error`` says, or its type where it says nothing."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__
