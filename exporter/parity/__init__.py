"""Parity: the references and the noise of PyTorch, the three checks (weights, structure, rounding), the verdict.

``compare`` is the rule, ``verify`` holds one file against it, ``prove`` does so for a bundle's files, and ``report`` is
what comes out. Imports runtimes and what that imports.
"""
