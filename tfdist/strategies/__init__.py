"""Strategies that users construct, and the methods that they name."""
