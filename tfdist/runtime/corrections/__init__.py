"""Staleness corrections at run time, on servers and on workers."""
