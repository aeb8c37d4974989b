"""What another precision does to the task: the same sentences decoded in float32 and in it, and compared.

``check_task`` in ``gate`` is where it starts.
"""
