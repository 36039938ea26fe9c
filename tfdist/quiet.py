"""Keeps TensorFlow's messages about our own doings from users."""

import contextlib

from absl import logging


@contextlib.contextmanager
def quietly():
    """Scope in which absl logs errors alone."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
