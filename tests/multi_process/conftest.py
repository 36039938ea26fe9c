import contextlib

import pytest

from tests.multi_process import real_cluster
from tests.multi_process.real_cluster import ClusterUnderTest


@pytest.fixture(scope="session")
def zygote():
    """Forks the tasks of all clusters."""
    return real_cluster.shared_zygote()


@pytest.fixture
def cluster(zygote, tmp_path):
    """Makes clusters whose processes end with the test."""
    with contextlib.ExitStack() as stack:

        def make(**counts):
            return stack.enter_context(
                ClusterUnderTest(zygote, tmp_path, **counts)
            )

        yield make
