"""What is exported: for each graph of a model its contract and the module that computes it.

Our own models have their graphs in ``model_graphs`` and ``decode_graphs``; a user's model comes in through
``user_code``, ``inferred`` and ``user_model``. Imports contracts and cases.
"""
