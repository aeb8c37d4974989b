"""A report as text, as JUnit XML for CI, and as the page ``parity.html``.

The data is in :mod:`mytx.exporter.parity.report`. Imports parity and bundle, and what those import.
"""
