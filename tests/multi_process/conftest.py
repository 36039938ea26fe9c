import contextlib

import pytest

from tests.multi_process.real_cluster import ClusterUnderTest
from tests.multi_process.real_cluster import Zygote


@pytest.fixture(scope="session")
def zygote():
    """Forks the tasks of all clusters."""
    with Zygote() as process:
        yield process


@pytest.fixture
def cluster(zygote, tmp_path):
    """Makes clusters whose processes end with the test."""
    with contextlib.ExitStack() as stack:

        def make(**counts):
            return stack.enter_context(
                ClusterUnderTest(zygote, tmp_path, **counts)
            )

        yield make
