"""Greedy and beam search as ONNX nodes around the graph of a cached step.

:mod:`mytx.models.search` describes the search. It imports nothing of mytx.
"""
