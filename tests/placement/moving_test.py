"""Variables and kernels on GPUs, of which there are names alone here."""

import keras
import pytest

from tfdist import placement
from tfdist.placement import layers
from tfdist.placement import moving

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


@pytest.mark.parametrize("chosen", ["auto", False])
def test_recurrent_layers_on_processors_do_without_cudnn(chosen):
    lstm = keras.layers.LSTM(2, use_cudnn=chosen)
    model = keras.Sequential(
        [keras.Input((3, 1)), keras.layers.Bidirectional(lstm, name="both")]
    )
    placement.place(model, {"both": "CPU:1"})
    both = model.layers[0]
    inner = [both.forward_layer, both.backward_layer]
    assert [each.use_cudnn for each in inner] == [False, False]
    parts = layers.parts(model)
    moving._settle_kernels(parts, {part.path: GPU for part in parts})
    assert [each.use_cudnn for each in inner] == [chosen, chosen]
