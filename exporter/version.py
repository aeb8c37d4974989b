"""Which mytx this is."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """The version of the installed distribution."""
    return metadata.version("mytx")
