"""The command line, in click: one file for each group of commands, their options, and what people see.

torch and other heavy packages are imported inside the commands. May import everything; nothing imports it.
"""
