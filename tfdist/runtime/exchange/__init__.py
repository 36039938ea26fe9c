"""One training step: record the updates, push, apply, pull."""
