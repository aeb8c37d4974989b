"""Errors that a user can fix."""

from __future__ import annotations


class MytxError(Exception):
    """An error with a hint. The command line prints both and exits with 2.

    Args:
        message: one line that describes the problem, with the values.
        hint: one line with the next step.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class CheckpointError(MytxError):
    """A checkpoint or a saved model cannot be read, or more information is needed to read it."""
