"""The inputs that a graph is tried on: the plan, identities, a user's own cases, and masks.

Everything here is made from a contract and a seed, with numpy alone. Imports contracts.
"""
