"""Which task of a cluster writes files, and that they are whole.

Every task runs the same program, so every one of them saves. The chief's
files are those that are there.
"""
