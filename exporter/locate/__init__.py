"""Finding the module, or the optimiser's rewrite, at which a file first differs from the model; and a reproduction.

Imports parity and bundle, and what those import.
"""
