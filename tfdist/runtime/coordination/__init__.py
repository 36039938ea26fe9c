"""One ordered log of decisions over pushed gradients."""
