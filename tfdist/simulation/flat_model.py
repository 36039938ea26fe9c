"""A Keras model whose parameters are one vector, as codecs take them."""

import keras
import numpy as np
import tensorflow as tf

from tfdist.simulation.codec_runs import CodecRuns
from tfdist.simulation.compiled import Compiled
from tfdist.simulation.gradients import CHUNKS
from tfdist.simulation.gradients import Gradients
from tfdist.simulation.gradients import apply


class FlatModel:
    """Computes gradients and steps of a model, and keeps nothing.

    The functions are traced once: several runs may share the object, if they
    have the same data and differ in first values alone.

    Args:
      model: The compiled `keras.Model`; its variables are written to.
      data: A `Data`.
      chunk: Gradients computed in one call at most.
      clips_means: Whether the optimizer clips what `apply` is given. By
        default `gradients` are clipped.

    Attributes:
      size: Elements of the vector of parameters.
      dtype: NumPy's.

    Raises:
      ValueError: The parameters have several types.
    """

    def __init__(self, model, data, chunk=CHUNKS[0], clips_means=False):
        self.model = model
        self._data = data
        self._parameters = model.trainable_variables
        dtypes = {variable.dtype for variable in self._parameters}
        if len(dtypes) > 1 or not dtypes <= {"float32", "float64"}:
            raise ValueError(
                "Argument `model_fn` must return a model whose trainable "
                "variables are all float32 or all float64, as they are one "
                f"vector here. Received: {sorted(dtypes)}"
            )
        self.dtype = np.dtype(dtypes.pop())
        self._shapes = [tuple(v.shape) for v in self._parameters]
        self._sizes = [int(np.prod(shape)) for shape in self._shapes]
        self.size = sum(self._sizes)
        self._gradients = Gradients(model, data, clips=not clips_means)
        self._clips_means = clips_means
        self._optimizer = model.optimizer
        self._optimizer.build(self._parameters)
        self._chunks = [size for size in CHUNKS if size <= chunk]
        self._several = Compiled(self._build_several)
        self._apply = Compiled(self._build_apply)
        # By codec.
        self._codec_runs = {}

    def first(self, model=None):
        """First values.

        Args:
          model: A `keras.Model` of the same variables; default: its own.

        Returns:
          The parameters, `[size]`; the model's other variables; and those of
          the optimizer: two lists of arrays.
        """
        model = self.model if model is None else model
        model.optimizer.build(model.trainable_variables)
        parts = [v.numpy().ravel() for v in model.trainable_variables]
        return (
            np.concatenate(parts),
            [v.numpy() for v in model.non_trainable_variables],
            [v.numpy() for v in model.optimizer.variables],
        )

    def gradients(self, jobs):
        """Computes gradients, each from parameters of its own.

        Args:
          jobs: List of (parameters, state, batch): `[size]`, the values of the
            model's other variables, and the number of a batch.

        Returns:
          A list of (gradient, state, loss).
        """
        by_size = {}
        for place, (_, _, batch) in enumerate(jobs):
            by_size.setdefault(self._data.size(batch), []).append(place)
        found = {}
        for places in by_size.values():
            while places:
                size = self._chunk_of(len(places))
                now, places = places[:size], places[size:]
                found.update(zip(now, self._compute(jobs, now), strict=True))
        return [found[place] for place in range(len(jobs))]

    def _chunk_of(self, count):
        """Size of the next call: not more than twice as many as there are."""
        return next(
            size for size in self._chunks if size < 2 * count or size == 1
        )

    def _compute(self, jobs, places):
        size = self._chunk_of(len(places))
        # The last one fills up the call.
        padded = [*places, *places[-1:] * (size - len(places))]
        weights = np.stack([jobs[place][0] for place in padded])
        states = [
            np.stack(values)
            for values in zip(
                *(jobs[place][1] for place in padded), strict=True
            )
        ]
        rows = np.stack([self._data.rows(jobs[place][2]) for place in padded])
        gradients, states, losses = self._several(
            tf.constant(weights),
            [tf.constant(value) for value in states],
            tf.constant(rows, tf.int64),
        )
        gradients, losses = gradients.numpy(), losses.numpy()
        states = [value.numpy() for value in states]
        for row in range(len(places)):
            yield (
                gradients[row],
                [value[row] for value in states],
                float(losses[row]),
            )

    def _build_several(self, weights, states, rows):
        def one(arguments):
            flat, state, places = arguments
            gradients, state, loss = self._gradients.build(
                self._unpacked(flat), state, places
            )
            dense = [
                tf.zeros(shape, flat.dtype)
                if gradient is None
                else tf.convert_to_tensor(gradient)
                for gradient, shape in zip(gradients, self._shapes, strict=True)
            ]
            return _packed(dense), state, tf.cast(loss, tf.float64)

        return tf.vectorized_map(one, (weights, states, rows))

    def apply(self, weights, slots, gradient):
        """Makes a step of the model's optimizer.

        Args:
          weights: `[size]`.
          slots: Values of the optimizer's variables, a list.
          gradient: `[size]`.

        Returns:
          The new parameters, the new slots, and the learning rate of the step.
        """
        weights, slots, rate = self._apply(
            tf.constant(weights),
            [tf.constant(value) for value in slots],
            tf.constant(gradient),
        )
        return weights.numpy(), [s.numpy() for s in slots], rate.numpy()

    def _build_apply(self, weights, slots, gradient):
        optimizer, parameters = self._optimizer, self._parameters
        for variable, value in zip(
            [*parameters, *optimizer.variables],
            [*self._unpacked(weights), *slots],
            strict=True,
        ):
            variable.assign(value)
        rate = keras.ops.convert_to_tensor(optimizer.learning_rate)
        apply(
            optimizer, self._unpacked(gradient), parameters, self._clips_means
        )
        return (
            _packed([variable.value for variable in parameters]),
            [tf.identity(variable.value) for variable in optimizer.variables],
            tf.cast(rate, weights.dtype),
        )

    def _unpacked(self, flat):
        parts = tf.split(flat, self._sizes)
        return [
            tf.reshape(part, shape)
            for part, shape in zip(parts, self._shapes, strict=True)
        ]

    def codec_runs(self, codec):
        """Returns the `CodecRuns` of a codec, for this vector."""
        if codec not in self._codec_runs:
            made = CodecRuns(codec, self.size, self.dtype)
            self._codec_runs[codec] = made
        return self._codec_runs[codec]

    def leave(self, weights, state, slots):
        """Leaves values in the model and its optimizer.

        Args:
          weights: `[size]`.
          state: Values of the model's other variables, a list.
          slots: Those of the optimizer's variables.
        """
        ends = np.cumsum(self._sizes)[:-1]
        parts = np.split(np.asarray(weights), ends)
        for variable, part in zip(self._parameters, parts, strict=True):
            variable.assign(part.reshape(variable.shape))
        for variables, values in (
            (self.model.non_trainable_variables, state),
            (self._optimizer.variables, slots),
        ):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)


def _packed(tensors):
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
