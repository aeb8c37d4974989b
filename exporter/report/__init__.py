"""A report for people and for CI: text, JUnit XML, and ``parity.html``.

The data is in :mod:`mytx.exporter.parity.report`. Imports parity and bundle, and what those import.
"""
