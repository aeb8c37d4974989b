"""Graphs: for each graph of a model its contract and the module that computes it.

``model_graphs`` and ``decode_graphs`` have the graphs of :mod:`mytx.models`; ``user_code``, ``inferred`` and
``user_model`` import a user's own model and make its graphs. It imports ``contracts``, ``cases`` and torch.
"""
