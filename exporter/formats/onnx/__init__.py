"""ONNX files: exported with ``torch.onnx``, composed of each other, written and read one weight at a time.

``files`` is where it starts; ``shared_weights`` is ``weights.bin``.
"""
