"""Batch optimization with a coordinator that holds no parameters."""
