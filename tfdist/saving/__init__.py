"""The files of a cluster: written by one task, and whole.

Every task runs the same program, so every one of them saves. The chief's
files are those that are there.
"""
