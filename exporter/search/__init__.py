"""Greedy and beam search written as ONNX nodes, around a cached step.

What the search does is described in :mod:`mytx.models.search`. Imports nothing of mytx.
"""
