"""Bundles: writing a bundle's folder completely or not at all, its manifest, and checking, opening and using a bundle.

Without the model, a bundle is opened and run in onnxruntime; ``rebuild`` builds the model again from the bundle. It
imports ``runtimes`` and what that imports, and nothing of ``parity``.
"""
