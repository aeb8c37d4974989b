"""Runtimes: a file for each program that runs a graph: onnxruntime, onnx.reference, TorchScript, torch.export, PyTorch.

``runtime`` defines the interface; ``run`` lists the ways to run a file of each format. It imports ``formats`` and what
that imports.
"""
