"""The formats that graphs are exported to, and the checks before a file of PyTorch is opened.

The only home of ``torch.onnx``, ``torch.jit`` and ``torch.export``. ``table`` lists the formats. Imports graphs and
search, and what those import.
"""
