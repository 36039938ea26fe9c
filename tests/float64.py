"""A fixture for tests whose numbers have to be told apart."""

import keras
import pytest


@pytest.fixture
def float64():
    """Rounding errors are then no excuse."""
    before = keras.config.floatx()
    # One that a test before this one has set would win.
    policy = keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before)
    keras.config.set_dtype_policy(policy)
