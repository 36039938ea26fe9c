"""Everything that hooks into Keras's calls, loops and data."""
