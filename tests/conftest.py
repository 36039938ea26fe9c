import ctypes
import gc

import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

# Tests of placement and pipelines need several devices, and TensorFlow makes
# them before its first operation or never.
CPU_DEVICES = 4
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * CPU_DEVICES,
)


def pytest_addoption(parser):
    parser.addoption(
        "--startup_rounds",
        type=int,
        default=10,
        help="Cluster starts in tests/multi_process/startup_test.py.",
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
    _forget_gradients()
    gc.collect()
    _give_back_memory()


def _forget_gradients():
    registry = ops.gradient_registry._registry
    for name in [name for name in registry if name.startswith("CustomGrad")]:
        del registry[name]


def _give_back_memory():
    """Gives the system what C's allocator has free; not all have this."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
