"""Reads what somebody trained, a checkpoint of any known layout or a folder that ``save_model`` wrote, into a model.

A checkpoint goes from ``files`` (bytes to objects) to ``state_dict`` (objects to named tensors), then ``key_option``,
``layers`` and ``embeddings_and_head`` give each tensor its place in ``ledger``; ``assumptions`` says what the file does
not, and ``load`` and ``description`` give the model or a description of the file.
May import the model files of :mod:`mytx.models` and :mod:`mytx.transformer`; no model file imports it.
"""
