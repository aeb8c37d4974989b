"""The folder that is shipped: made whole or not at all, described by its manifest, checked, opened, and used.

Imports runtimes and what that imports; it knows nothing of parity.
"""
