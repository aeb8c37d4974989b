"""Text through a bundle: lines and files of any size, resumed where they were interrupted, and a benchmark.

Imports bundle, and what that imports.
"""
