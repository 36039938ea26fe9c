"""The calls that a sequential or functional model is made of."""

import dataclasses
import math

import keras

from tfdist import private_keras


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a layer (or operation) in a model.

    Attributes:
      operation: The `keras.Layer` or `keras.Operation`.
      fill_in: A function from a dict (key to tensor) to (args, kwargs).
      inputs: Keys of the tensors that it takes.
      outputs: Keys of the tensors that it gives, in flattened order.
      work: Multiply-adds for one example, estimated from the weights and the
        number of positions at which they are used; an int.
    """

    operation: object
    fill_in: object
    inputs: tuple
    outputs: tuple
    work: int = 0


def calls_of(model):
    """(calls, inputs, outputs) of a sequential or functional model.

    Returns:
      The `Call`s in an order in which they can run, and the keys of the
      model's input and output tensors in flattened order.
    """
    if not model.built:
        raise ValueError(
            f"Model {model.name!r} is not built: give it an Input, or call "
            "build, first: its layers' calls are not known."
        )
    if isinstance(model, keras.Sequential):
        layers = list(model.layers)
        shapes = [tensor.shape for tensor in model.inputs]
        shapes += [getattr(layer, "output", None) for layer in layers]
        shapes = [getattr(shape, "shape", shape) for shape in shapes]
        calls = [
            Call(
                layer, _only(k), (k,), (k + 1,), _work(layer, shapes[k : k + 2])
            )
            for k, layer in enumerate(layers)
        ]
        return calls, (0,), (len(layers),)
    if not hasattr(model, "operations"):
        raise ValueError(
            "Argument `model` must be a Sequential or functional model, whose "
            "calls are known before it runs: build it as keras.Model(inputs, "
            "outputs), with parts of it as layers. Received: "
            f"{type(model).__name__!r}, a subclass of keras.Model"
        )
    keys = lambda tensors: tuple(id(tensor) for tensor in tensors)  # noqa: E731
    calls = [
        Call(
            operation,
            fill_in,
            keys(inputs),
            keys(outputs),
            _work(operation, [t.shape for t in (*inputs, *outputs)]),
        )
        for operation, fill_in, inputs, outputs in private_keras.calls_of(model)
    ]
    return calls, keys(model.inputs), keys(model.outputs)


def _only(key):
    return lambda values: ((values[key],), {})


def _work(operation, shapes):
    """Multiply-adds for one example, a little more for what has no weights."""
    positions = max(
        math.prod(length or 1 for length in shape[1:-1])
        for shape in shapes
        if shape is not None
    )
    # Rows of a table are copied, and not multiplied.
    # The type of a placed one is a subclass.
    tables = operation.__class__ is keras.layers.Embedding
    weights = () if tables else getattr(operation, "weights", ())
    sizes = [math.prod(w.shape) for w in weights if len(w.shape) > 1]
    return 1 + positions * sum(sizes)
