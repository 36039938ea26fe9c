"""Layers onto devices, by hand or automatically."""

from typing import Any

import keras

from tfdist.placement import auto
from tfdist.placement import devices as devices_lib
from tfdist.placement import layers
from tfdist.placement import moving
from tfdist.placement import placed


def place(
    model: keras.Model, placement: Any, devices: Any = None, **options: Any
) -> keras.Model:
    """Puts the layers of a model on devices, and everything that they need.

    A layer's variables, the operations of its calls, their gradients and what
    the optimizer keeps and does for its variables are then on its device.
    What no layer does (loss, metrics, regularization) follows the tensors
    that it works on. The model stays the same object with the same names and
    weights, and is saved as before. It runs without XLA, also if it was
    compiled with `jit_compile=True` before; its `compile` refuses that.

    Args:
      model: A `keras.Model`: sequential, functional or subclassed; built or
        not, compiled or not.
      placement: A dict from layers to devices. A layer is given by name, by
        path ("encoder/attention" for a layer of a layer) or by a pattern of
        either ("encoder*"); a name or path beats a pattern, a later pattern
        an earlier one. What a placed layer is made of goes with it, unless it
        is named itself. A device is given as TensorFlow does ("GPU:1",
        "/job:worker/task:1/GPU:0"). Layers that are not named stay where they
        are, and their operations follow their inputs. Or "auto".
      devices: With "auto", the devices to choose from; see
        `tfdist.placement.choose`.
      **options: With "auto", what `choose` takes: `memory_limit`, `data`,
        `method`, ...

    Returns:
      The model.

    Raises:
      ValueError: A name that no layer has, a device that does not exist (the
        message lists what there is), or a model whose variables belong to a
        `tf.distribute` strategy that keeps them elsewhere.
    """
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"Argument `model` must be a keras.Model. Received: model={model!r}"
        )
    if placement == "auto":
        placement = auto.layers_of(auto.choose(model, devices, **options))
    elif devices is not None or options:
        given = sorted(options) + ["devices"] * (devices is not None)
        raise ValueError(
            f"{', '.join(given)} came with a placement by hand; they belong to "
            'placement="auto".'
        )
    if not isinstance(placement, dict) or not placement:
        raise ValueError(
            'Argument `placement` must be "auto" or a dict from layer names '
            f"or patterns to devices. Received: placement={placement!r}"
        )
    model_parts = layers.parts(model)
    chosen = layers.choose(
        model_parts,
        {
            pattern: devices_lib.resolve(device, f"placement[{pattern!r}]")
            for pattern, device in placement.items()
        },
    )
    moving.check(model, chosen)
    for part in model_parts:
        placed.put(
            part.layer, chosen.get(part.path, layers.device_of(part.layer))
        )
    placed.put_optimizers(model)
    if model.compiled:
        model.jit_compile = False
    moving.settle(model)
    # What was traced before has the old places.
    for part in model_parts:
        if isinstance(part.layer, keras.Model):
            part.layer.train_function = None
            part.layer.test_function = None
            part.layer.predict_function = None
    return model
