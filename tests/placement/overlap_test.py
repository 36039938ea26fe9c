"""Parts on different devices really run at the same time."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist import placement

# Far above what two threads need to meet; passed only if they never do.
SECONDS = 30


class Meeting(keras.layers.Layer):
    """Passes its input on when another layer is running at the same time."""

    def __init__(self, barrier, **kwargs):
        super().__init__(**kwargs)
        self._barrier = (barrier,)

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)

    def call(self, x):
        @tf.custom_gradient
        def meet(x):
            def gradient(dy):
                return self._wait(dy)

            return self._wait(x), gradient

        return meet(x)

    def _wait(self, x):
        def wait(value):
            self._barrier[0].wait()
            return value

        # Stateless: a function runs stateful ones one after the other.
        y = tf.numpy_function(wait, [x], x.dtype, stateful=False)
        y.set_shape(x.shape)
        return y


@pytest.mark.nightly
def test_branches_on_two_devices_overlap_forward_and_backward():
    barrier = threading.Barrier(2, timeout=SECONDS)
    inputs = keras.Input((3,))
    left = Meeting(barrier, name="left")(inputs * 2.0)
    right = Meeting(barrier, name="right")(inputs * 3.0)
    model = keras.Model(inputs, keras.layers.Dense(1)(left + right))
    placement.place(model, {"left": "CPU:1", "right": "CPU:2"})

    @tf.function
    def step(x):
        with placement.following(), tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(model(x))
        return y, tape.gradient(y, x)

    # A barrier that is alone breaks, and the step fails.
    _, gradient = step(tf.ones((2, 3)))
    kernel = model.layers[-1].kernel.numpy()[:, 0]
    np.testing.assert_allclose(gradient, [5 * kernel] * 2, rtol=1e-6)
