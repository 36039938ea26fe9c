"""Variables and kernels on GPUs, of which there are names alone here."""

import keras
import numpy as np
import pytest

from tfdist import placement
from tfdist.placement import layers
from tfdist.placement import moving
from tfdist.placement import placed

CPU, GPU = (
    f"/job:localhost/replica:0/task:0/device:{name}"
    for name in ("CPU:0", "GPU:1")
)


class Counting(keras.layers.Layer):
    """Has weights of several types."""

    def build(self, shape):
        """Makes them."""
        del shape
        for dtype in ("int32", "int64", "float32"):
            self.add_weight(shape=(), dtype=dtype, name=dtype)


def moves(layer, home):
    """By name of a variable, the device that it is to be moved to."""
    parts = layers.parts(layer)
    homes = {part.path: home for part in parts}
    return {v.name: device for v, device in moving._moves(parts, homes)}


def test_what_a_gpu_has_no_variables_of_stays_on_the_processor():
    """Otherwise each step would make a new one, and empty the old one."""
    layer = Counting()
    layer.build(())
    assert moves(layer, GPU) == {"int64": GPU, "float32": GPU}
    assert moves(layer, CPU.replace("CPU:0", "CPU:2")).keys() == {
        "int32",
        "int64",
        "float32",
    }


class Told(keras.layers.LSTM):
    """Tells of each call whether it may use cuDNN."""

    def inner_loop(self, *args, **kwargs):
        """Notes it."""
        self.told.add(self.use_cudnn)
        return super().inner_loop(*args, **kwargs)


@pytest.mark.parametrize(
    ("home", "used", "chosen", "expected"),
    [
        # A stage's replica, or a measurement, may be elsewhere.
        (CPU, None, "auto", False),
        (CPU, GPU, "auto", "auto"),
        (GPU, CPU, "auto", False),
        (None, CPU, "auto", False),
        (None, None, "auto", "auto"),
        (GPU, None, False, False),
    ],
)
def test_recurrent_layers_on_processors_do_without_cudnn(
    home, used, chosen, expected
):
    inner = keras.layers.LSTM(2, use_cudnn=chosen)
    both = keras.layers.Bidirectional(inner)
    for each in layers_of(both):
        each._tfdist_device = home
    with placed.replica_on(used), placed.kernels_of(both, used or home):
        found = {each.use_cudnn for each in layers_of(both)}
    assert found == {expected}
    assert {each.use_cudnn for each in layers_of(both)} == {chosen}


def layers_of(both):
    return [both.forward_layer, both.backward_layer]


def test_they_do_in_calls_of_placed_layers_and_in_measurements(monkeypatch):
    told = set()
    monkeypatch.setattr(Told, "told", told, raising=False)
    model = keras.Sequential([keras.Input((3, 1)), Told(2, name="lstm")])
    told.clear()
    placement.measure(model, np.ones((1, 3, 1)), device="CPU:0", repeats=1)
    assert told == {False}
    placement.place(model, {"lstm": "CPU:1"})
    told.clear()
    model(np.ones((1, 3, 1)))
    assert told == {False}
    assert model.layers[0].use_cudnn == "auto"
