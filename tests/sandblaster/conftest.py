import keras
import pytest

from tests.multi_process.conftest import cluster
from tests.multi_process.conftest import zygote
import tfdist

__all__ = ["cluster", "zygote"]


@pytest.fixture(scope="module")
def strategy():
    return tfdist.SandblasterStrategy(portions_per_worker=5)


@pytest.fixture
def float64():
    """So that values are told apart near the minimum."""
    before = keras.config.floatx()
    policy = keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before)
    keras.config.set_dtype_policy(policy)
