"""Lines of text, and their translations by the bundle that decodes."""

from __future__ import annotations

from bundles import decoding_bundle
from mytx.exporter import open_bundle

LINES = ["abc", "hg", "", "dddd", "a", "gfedcba"] * 20


def translated(lines: list[str], **options: int) -> list[str]:
    """What comes of texts, one at a time."""
    bundle = open_bundle(decoding_bundle())
    found = {line: bundle.generate([line], max_length=6, **options)[0].text or "" for line in set(lines)}
    return [found[line] for line in lines]
