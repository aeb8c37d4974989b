"""Decoding text with a bundle: lines, files of any size with resuming, and a benchmark.

Imports bundle, and what that imports.
"""
