"""State of a training run: saved, and resumed from."""
