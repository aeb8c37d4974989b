"""Reads checkpoints in all known layouts, and reads and writes the folders of ``save_model``.

``files`` opens a file and ``state_dict`` finds the named tensors in it; then ``key_option``, ``layers`` and
``embeddings_and_head`` place each tensor in the ``ledger``, ``assumptions`` chooses the settings that a file does not
hold, and ``load`` builds the model or ``description`` describes the file.
Imports the model files of :mod:`mytx.models` and :mod:`mytx.transformer`; no model file imports this package.
"""
