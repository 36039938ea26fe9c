"""Costs of each layer of a model: measured, or estimated."""

import collections
import contextlib
import statistics
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import checks
from tfdist import private_keras
from tfdist.placement import devices as devices_lib
from tfdist.placement import loops
from tfdist.placement import placed
from tfdist.placement.calls import calls_of
from tfdist.placement.graph import CostGraph
from tfdist.placement.graph import Edge
from tfdist.placement.graph import Node

# A multiply-add is two operations; a backward pass has two products of the
# size of the forward's: for the weights and for the inputs.
_FLOPS_OF_WORK = 2
_BACKWARD = 2


def measure(
    model: keras.Model,
    data: Any,
    *,
    device: str | None = None,
    repeats: int = 5,
    slots: int | None = None,
) -> CostGraph:
    """Runs each layer by itself, and takes its times and sizes.

    Nothing of the model is changed: neither weights nor moving statistics.

    Args:
      model: A built sequential or functional `keras.Model`.
      data: Inputs of one micro-batch, as the model takes them: arrays.
      device: Where to measure; None: on the default device.
      repeats: Runs of each layer, of which the median counts. One more, to
        warm up, does not count.
      slots: Variables that the optimizer keeps for each weight; None: what
        the model was compiled with keeps, 2 (Adam's) if it was not.

    Returns:
      A `CostGraph` with a node per call of a layer, named as the layer
      ("name#2" for the second call of a shared one). Seconds are of one
      micro-batch.

    Raises:
      ValueError: The model is of another kind or not built; repeats below 1.
    """
    repeats = checks.count("repeats", repeats)
    place = None if device is None else devices_lib.resolve(device)

    def timed(call, arguments):
        with (
            tf.device(place) if place else contextlib.nullcontext(),
            placed.replica_on(place),
            # Those of layers that are not placed, too.
            placed.kernels_of(call.operation, place),
        ):
            forward = _Passes(call, arguments, backward=False)
            both = _Passes(call, arguments, backward=True)
            once = _seconds(forward.function, arguments, repeats)
            twice = _seconds(both.function, arguments, repeats)
            results = forward.function(*arguments)
        return results, both, once, max(twice - once, 0.0)

    inputs = [
        tf.convert_to_tensor(x) for x in private_keras.flat_inputs(model, data)
    ]
    return _walk(model, inputs, timed, slots)


def estimate(
    model: keras.Model,
    batch_size: int = 32,
    *,
    flops_per_second: float = 1e13,
    bytes_per_second: float = 5e11,
    overhead_seconds: float = 2e-5,
    slots: int | None = None,
) -> CostGraph:
    """Estimates each layer's costs from its shapes, without running it.

    A layer takes as long as its arithmetic or as reading and writing its
    weights and outputs, whichever is longer (the "roofline"); its backward
    pass takes twice as long.

    Args:
      model: A built sequential or functional `keras.Model`.
      batch_size: Examples in a micro-batch.
      flops_per_second: Of a device, that it really reaches.
      bytes_per_second: Of a device's memory.
      overhead_seconds: To start a layer's operations, however small.
      slots: See `measure`.

    Returns:
      A `CostGraph`, as `measure` gives.

    Raises:
      ValueError: The model is of another kind or not built.
    """
    calls_of(model)  # Refuses what has no known inputs.
    batch_size = checks.count("batch_size", batch_size)
    specs = [
        tf.TensorSpec([batch_size, *x.shape[1:]], x.dtype) for x in model.inputs
    ]

    def guessed(call, arguments):
        both = _Passes(call, arguments, backward=True)
        moved = both.output_bytes + sum(
            _variable_bytes(v) for v in getattr(call.operation, "variables", ())
        )
        seconds = overhead_seconds + max(
            _FLOPS_OF_WORK * call.work * batch_size / flops_per_second,
            moved / bytes_per_second,
        )
        return both.output_specs, both, seconds, _BACKWARD * seconds

    return _walk(model, specs, guessed, slots)


class _Passes:
    """The forward, or forward and backward pass of one call, as a function.

    Attributes:
      function: A concrete function of the call's input tensors.
      output_specs: Of the call's outputs.
      output_bytes: Of all of them.
      kept_bytes: Of what the forward pass keeps for the backward pass.
    """

    def __init__(self, call, arguments, backward):
        self._call = call
        self.output_specs = []
        specs = [
            x
            if isinstance(x, tf.TensorSpec)
            else tf.TensorSpec(x.shape, x.dtype)
            for x in arguments
        ]
        body = self._both if backward else self._forward
        self.function = tf.function(body, autograph=False)
        concrete = self.function.get_concrete_function(*specs)
        self.output_bytes = sum(map(_spec_bytes, self.output_specs))
        self.kept_bytes = _kept(concrete.graph)

    def _forward(self, *tensors):
        # What it assigns stays in the scope.
        with keras.StatelessScope():
            results = _Training(self._call)(list(tensors), training=True)
        results = keras.tree.flatten(results)
        self.output_specs = [tf.TensorSpec(x.shape, x.dtype) for x in results]
        return results

    def _both(self, *tensors):
        call = self._call
        weights = [
            v.value for v in getattr(call.operation, "trainable_variables", ())
        ]
        real = [x for x in tensors if x.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(real)
            results = [
                x for x in self._forward(*tensors) if x.dtype.is_floating
            ]
        gradients = tape.gradient(results, [*real, *weights])
        return results, [
            # Those of rows of a table, not the whole table.
            getattr(gradient, "values", gradient)
            for gradient in gradients
            if gradient is not None
        ]


class _Training(keras.Layer):
    """Tells the operation of a call that it trains, as a model would."""

    def __init__(self, call):
        super().__init__(autocast=False, dtype="float32", name="passes")
        self._hidden = (call,)
        self.built = True
        self.supports_masking = True

    def call(self, tensors, training=None):
        (call,) = self._hidden
        args, kwargs = call.fill_in(
            dict(zip(call.inputs, tensors, strict=True))
        )
        if isinstance(call.operation, keras.Layer) and "training" in kwargs:
            # What it was when the functional model was put together.
            kwargs["training"] = training
        return call.operation(*args, **kwargs)

    def compute_mask(self, *args, **kwargs):
        return None


def _walk(model, inputs, passes, slots):
    calls, input_keys, _ = calls_of(model)
    if slots is None:
        slots = _slots(model)
    values = dict(zip(input_keys, inputs, strict=True))
    counts, names, nodes = collections.Counter(), {}, []
    makers, sizes = {}, {}
    sharing = collections.defaultdict(list)
    edges = collections.defaultdict(lambda: [0, 0])
    for call in calls:
        operation = call.operation
        counts[id(operation)] += 1
        number = counts[id(operation)]
        name = operation.name + (f"#{number}" if number > 1 else "")
        if name in names:
            raise ValueError(
                f"Two layers of model {model.name!r} are named {name!r}."
            )
        names[name] = call
        results, both, forward, backward = passes(
            call, [values[key] for key in call.inputs]
        )
        weight = sum(
            map(_variable_bytes, getattr(operation, "trainable_variables", ()))
        )
        state = sum(map(_variable_bytes, getattr(operation, "variables", ())))
        first = number == 1
        nodes.append(
            Node(
                name,
                forward,
                backward,
                # Weights, gradients and slots; a shared layer has them once.
                resident_bytes=first * (state + weight * (1 + slots)),
                activation_bytes=both.kept_bytes,
                output_bytes=both.output_bytes,
                weight_bytes=first * weight,
            )
        )
        sharing[id(operation)].append(name)
        for variable in getattr(operation, "trainable_variables", ()):
            sharing[id(variable)].append(name)
        for key in dict.fromkeys(call.inputs):
            if key in makers:
                size, real = sizes[key]
                edges[makers[key], name][0] += size
                edges[makers[key], name][1] += size * real
        results = keras.tree.flatten(results)
        for key, result in zip(call.outputs, results, strict=True):
            values[key] = result
            makers[key] = name
            sizes[key] = _spec_bytes(result), result.dtype.is_floating
    return CostGraph(
        tuple(nodes),
        tuple(Edge(a, b, *both) for (a, b), both in edges.items()),
        tuple(
            tuple(dict.fromkeys(group))
            for group in sharing.values()
            if len(set(group)) > 1
        ),
    )


def _seconds(function, arguments, repeats):
    """Median of several runs, each to its end."""
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        for result in keras.tree.flatten(function(*arguments)):
            result.numpy()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def _kept(graph):
    """Bytes of forward tensors that gradients take."""
    total = sum(loops.kept_bytes(graph).values())
    for operation in graph.get_operations():
        if operation.type in ("Placeholder", "ReadVariableOp", "Const"):
            continue
        if "gradient_tape/" in operation.name:
            continue
        for tensor in operation.outputs:
            if any("gradient_tape/" in c.name for c in tensor.consumers()):
                total += _spec_bytes(tensor)
    return total


def _spec_bytes(spec):
    if spec.dtype in (tf.resource, tf.variant):
        return 0
    return (spec.shape.num_elements() or 0) * spec.dtype.size


def _variable_bytes(variable):
    return (
        tf.TensorShape(variable.shape).num_elements()
        * tf.as_dtype(variable.dtype).size
    )


def _slots(model):
    """Number of variables of a weight's size that are kept for it."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not model.trainable_variables:
        return 2
    config = optimizer.get_config()
    # In a graph of its own no strategy makes the variables: none is on servers.
    with tf.Graph().as_default():
        copy = optimizer.__class__.from_config(config)
        copy = getattr(copy, "inner_optimizer", copy)
        probe = keras.Variable(np.zeros([7, 3]), name="probe")
        copy.build([probe])
        return sum(tuple(v.shape) == (7, 3) for v in copy.variables)
