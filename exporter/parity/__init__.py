"""Parity: reference results and noise of PyTorch, the three checks (weights, structure, rounding), and the verdict.

``compare`` has the comparison rule, ``verify`` runs and compares one file, ``prove`` all files of a bundle, and
``report`` is the result. It imports ``runtimes`` and what that imports.
"""
