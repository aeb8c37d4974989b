"""Everything that can run a graph, a file each: onnxruntime, onnx.reference, TorchScript, torch.export, PyTorch.

``runtime`` says what a runtime is, ``run`` in which ways a file of each format is run. Imports formats and what that
imports.
"""
