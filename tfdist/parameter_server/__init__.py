"""Strategies whose parameters live on servers."""
