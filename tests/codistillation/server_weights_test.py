import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster import sessions
from tfdist.codistillation import quantization
from tfdist.codistillation import server_weights

HALF = quantization.LARGEST_HALF


def arrays():
    random = np.random.default_rng(0)
    kernel = random.normal(size=[3, 4, 5, 6]).astype(np.float32)
    with_zeros = random.normal(size=[8, 3]).astype(np.float32)
    with_zeros[:, 1] = 0
    return {
        "kernel": kernel,
        "wide": random.normal(size=[300, 200]).astype(np.float32),
        "float64": random.normal(size=[30, 20]),
        "a slice of zeros": with_zeros,
        # Half way between two levels: to the even one, and exactly.
        "ties": np.array([[127.0, 254], [0.5, 3], [1.5, 5]], np.float32),
        "largest half": np.array([[HALF, 1.0]], np.float32),
        "below it": np.array([[np.nextafter(np.float32(HALF), 0), 1.0]]),
        "negative overflow": np.array([[-2 * HALF, 1.0]], np.float32),
        "without rows": np.zeros([0, 3], np.float32),
        "without columns": np.zeros([3, 0], np.float32),
        "vector": random.normal(size=[7]).astype(np.float32),
        "scalar": np.float32(3.25),
        "integers": np.arange(6).reshape(2, 3),
        "half": kernel.astype(np.float16),
        "not a number": np.array([[np.nan, 1.0], [2.0, 3.0]], np.float32),
        "infinite": np.array([[np.inf, 1.0], [2.0, 3.0]], np.float32),
    }


@pytest.mark.parametrize("dtype", quantization.DTYPES)
@pytest.mark.parametrize("name", arrays())
@pytest.mark.filterwarnings("ignore:.*invalid value:RuntimeWarning")
def test_servers_quantise_as_this_process_does(name, dtype):
    array = np.asarray(arrays()[name])
    with tf.Graph().as_default() as graph:
        given = tf.compat.v1.placeholder(array.dtype, array.shape)
        built = server_weights.quantise(given, dtype)
    config = sessions.exactly(tf.compat.v1.ConfigProto())
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        came = session.run(tuple(built), {given: array})
    expected = quantization.quantise(array, dtype)
    restored = server_weights.restore(came, array.shape, array.dtype)
    assert restored.dtype == array.dtype
    np.testing.assert_array_equal(
        restored, quantization.restore(expected, array.dtype)
    )
    assert sum(part.nbytes for part in came) == sum(
        part.nbytes for part in expected
    )
