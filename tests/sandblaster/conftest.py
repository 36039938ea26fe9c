import pytest

from tests.float64 import float64
from tests.multi_process.conftest import cluster
from tests.multi_process.conftest import zygote
import tfdist

__all__ = ["cluster", "float64", "zygote"]


@pytest.fixture(scope="module")
def strategy():
    return tfdist.SandblasterStrategy(portions_per_worker=5)


@pytest.fixture
def alone():
    """A strategy of the test's own."""
    return tfdist.SandblasterStrategy(portions_per_worker=5)
