"""Cases: the inputs that a graph is tested with.

A plan is made from a contract and a seed; identities and the user's own cases come after it. It imports ``contracts``
and numpy, and no torch.
"""
