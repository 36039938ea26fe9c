import ctypes
import gc

import hypothesis
import pytest

# Tests of placement and pipelines need several devices, and TensorFlow makes
# them before its first operation or never.
CPU_DEVICES = 4

# The gate tries the same examples each time; `make nightly` passes
# --hypothesis-profile=nightly and tries others (tests/laws.py).
hypothesis.settings.register_profile(
    "gate",
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "nightly",
    max_examples=1000,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("gate")

pytest_plugins = ["tests.passed_before", "tests.reruns"]


def pytest_addoption(parser):
    parser.addoption(
        "--startup_rounds",
        type=int,
        default=10,
        help="Cluster starts in tests/multi_process/startup_test.py.",
    )


def pytest_configure(config):
    """Makes the devices, where tests run: not where files are handed out."""
    if hasattr(config, "workerinput") or not config.getoption(
        "numprocesses", None
    ):
        import tensorflow as tf

        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * CPU_DEVICES,
        )


def pytest_collection_finish(session):
    """What was imported stays: no collection of garbage goes over it again."""
    del session
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def forget_graphs():
    """Lets go of what TensorFlow keeps of the models of a file.

    TensorFlow registers a gradient of each graph in which Keras, without a
    strategy or under one of TensorFlow's, reduces gradients, for good and with
    the graph: 5 to 20 MB for each small model. No public name forgets it.
    """
    yield
    # Collecting takes a third of a second: too much for each small file.
    if _forget_gradients():
        gc.collect()
        _give_back_memory()


def _forget_gradients():
    """Returns how many there were."""
    from tensorflow.python.framework import ops

    registry = ops.gradient_registry._registry
    names = [name for name in registry if name.startswith("CustomGrad")]
    for name in names:
        del registry[name]
    return len(names)


def _give_back_memory():
    """Gives the system what C's allocator has free; not all have this."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
