"""Recurrent layers on several devices that work at the same time."""

from typing import Any

import keras

from tfdist import checks


@keras.saving.register_keras_serializable("tfdist")
class RecurrentStack(keras.layers.Layer):
    """Stacked recurrent layers that run as a wavefront over time.

    A recurrent layer takes the whole sequence that the one below gives: on
    two devices, one would wait while the other works. Here the sequence goes
    through in chunks of time steps, and layer l works on chunk c while layer
    l - 1 works on chunk c + 1. What is computed is the same. Of L layers
    that take equally long, with C chunks, the time is (L + C - 1) / (L C) of
    one after the other.

    ```python
    stack = tfdist.placement.RecurrentStack(
        [keras.layers.LSTM(512, name="low"), keras.layers.LSTM(512, name="up")],
        chunks=8,
    )
    model = keras.Sequential([keras.Input((256, 64)), stack, ...])
    tfdist.placement.place(model, {"*/low": "GPU:0", "*/up": "GPU:1"})
    ```

    Args:
      layers: `keras.layers.LSTM`, `GRU`, `SimpleRNN`, `RNN` or `ConvLSTM2D`
        (and others that are an `RNN`), not built yet, from the lowest up. The
        stack makes its own of them, of the same names.
      chunks: Into how many chunks the time steps are cut, at most as many as
        there are steps. Their lengths differ by one at most.
      return_sequences: Whether to give the output of each time step, [batch,
        time, ...], or of the last one, [batch, ...].

    Raises:
      ValueError: No layers, fewer than one chunk, a layer that is built or of
        another kind, or one that does what chunks cannot: `stateful`,
        `go_backwards`, `unroll`, dropout (whose mask is one for all steps).
    """

    def __init__(
        self,
        layers: Any,
        chunks: int = 4,
        return_sequences: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if isinstance(layers, keras.layers.Layer) or not list(layers):
            raise ValueError(
                "Argument `layers` must be a list of recurrent layers. "
                f"Received: layers={layers!r}"
            )
        chunks = checks.count("chunks", chunks)
        names = [getattr(layer, "name", None) for layer in layers]
        if len(set(names)) < len(names):
            raise ValueError(
                "Argument `layers` must have different names. Received: "
                f"{names}"
            )
        self.chunks = int(chunks)
        self.return_sequences = return_sequences
        self.supports_masking = True
        self.layers = [_own(layer) for layer in layers]

    def build(self, input_shape: Any) -> None:
        shape = tuple(input_shape)
        if shape[1] is None or shape[1] < self.chunks:
            raise ValueError(
                f"Argument `inputs` of RecurrentStack {self.name!r} must have "
                f"a known number of time steps of at least {self.chunks}, the "
                f"chunks that they are cut into. Received: {shape[1]} (shape "
                f"{shape})"
            )
        for layer in self.layers:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)[0]
        super().build(input_shape)

    def call(self, inputs: Any, mask: Any = None) -> Any:
        steps = inputs.shape[1]
        bounds = [steps * k // self.chunks for k in range(self.chunks + 1)]
        states = [None] * len(self.layers)
        last = [None] * len(self.layers)
        outputs = []
        for layer in self.layers:
            # cuDNN takes no sequence that is wholly masked, as a chunk may be.
            if mask is not None and hasattr(layer, "use_cudnn"):
                layer.use_cudnn = False
        for begin, end in zip(bounds, bounds[1:], strict=False):
            chunk = inputs[:, begin:end]
            chunk_mask = None if mask is None else mask[:, begin:end]
            for number, layer in enumerate(self.layers):
                chunk, *states[number] = layer(
                    chunk, initial_state=states[number], mask=chunk_mask
                )
                if mask is not None:
                    chunk = _go_on(chunk, chunk_mask, last[number])
                    last[number] = chunk[:, -1:]
            outputs.append(chunk)
        if self.return_sequences:
            return keras.ops.concatenate(outputs, axis=1)
        return outputs[-1][:, -1]

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        return previous_mask if self.return_sequences else None

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        shape = tuple(input_shape)
        for layer in self.layers:
            shape = layer.compute_output_shape(shape)[0]
        return shape if self.return_sequences else (shape[0], *shape[2:])

    def get_config(self) -> dict[str, Any]:
        layers = [keras.layers.serialize(layer) for layer in self.layers]
        for layer in layers:
            # The stack builds them.
            layer.pop("build_config", None)
        return {
            **super().get_config(),
            "layers": layers,
            "chunks": self.chunks,
            "return_sequences": self.return_sequences,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "RecurrentStack":
        layers = [keras.layers.deserialize(x) for x in config["layers"]]
        return cls(**{**config, "layers": layers})


def _go_on(outputs, mask, last):
    """Repeats the last output that was not masked in masked steps.

    A layer that gets a chunk does not know the outputs before it.
    """
    if last is None:
        return outputs
    begun = keras.ops.cumsum(keras.ops.cast(mask, "int32"), axis=1) > 0
    dimensions = (1,) * (len(outputs.shape) - 2)
    begun = keras.ops.reshape(begun, (-1, begun.shape[1], *dimensions))
    return keras.ops.where(begun, outputs, last)


def _own(layer):
    """A layer like `layer` that gives all its outputs and its last state."""
    name = getattr(layer, "name", repr(layer))
    if not isinstance(layer, keras.layers.RNN):
        raise ValueError(
            "Argument `layers` must be LSTM, GRU, SimpleRNN or another RNN. "
            f"Received: {type(layer).__name__} {name!r}"
        )
    if layer.built:
        raise ValueError(
            f"Layer {name!r} of a RecurrentStack is built already: make the "
            "stack first, and set its weights then."
        )
    cell = getattr(layer, "cell", None)
    holders = [layer, cell, *getattr(cell, "cells", ())]
    for setting in (
        "stateful",
        "go_backwards",
        "unroll",
        "dropout",
        "recurrent_dropout",
        "zero_output_for_mask",
        "activity_regularizer",
    ):
        for holder in holders:
            value = getattr(holder, setting, None)
            # Zero, False and None are none.
            if value:
                raise ValueError(
                    f"Layer {name!r} of a RecurrentStack has {setting}="
                    f"{value!r}, which a sequence in chunks cannot have."
                )
    config = layer.get_config()
    config.update(return_sequences=True, return_state=True)
    return type(layer).from_config(config)
