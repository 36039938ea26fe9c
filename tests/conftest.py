import gc

import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--startup_rounds",
        type=int,
        default=10,
        help="Cluster starts in tests/multi_process/startup_test.py.",
    )


@pytest.fixture(scope="session", autouse=True)
def _quick():
    """Keeps a process of tests from looking for garbage all the time."""
    # What is imported is no garbage, and each function that TensorFlow traces
    # makes a hundred thousand objects.
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
