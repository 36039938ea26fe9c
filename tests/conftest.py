import tensorflow as tf

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
