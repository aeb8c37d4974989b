"""What another precision does to the task: the same sentences decoded in float32 and in it, and compared.

``task_of`` in ``gate`` is where it starts. It imports ``bundle`` and what stands below that.
"""
