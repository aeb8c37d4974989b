"""Formats: writing a graph to an ONNX, TorchScript or torch.export file, and checking a file before PyTorch opens it.

``table`` lists the formats; only this package uses ``torch.onnx``, ``torch.jit`` and ``torch.export``. It imports
``graphs`` and ``search``, and what these import.
"""
