"""Where a file leaves the model: the module, or the rewrite of onnxruntime's optimiser, and a reproduction.

Imports parity and bundle, and what those import.
"""
