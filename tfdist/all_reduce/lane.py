"""The reduction of one optimizer's step over all workers."""

import functools

import keras
import tensorflow as tf

from tfdist import private_keras
from tfdist import private_tensorflow
from tfdist.all_reduce import pieces
from tfdist.all_reduce import tail as tail_lib
from tfdist.all_reduce.variables import plain


class Lane:
    """One optimizer's gradients, and shared state that its step assigns.

    A step reduces both at once, and then is Keras's own with the means. A
    worker without a batch *follows*: it brings nothing and takes the same
    step with the means of the others.

    Args:
      engine: The `Engine`.
      optimizer: A Keras optimizer; None for state alone.
      variables: Keras variables that it trains, a list.
      states: List of `WorkerVariable` that are assigned by other code.
      number: Of this lane, the same on all workers.
    """

    def __init__(self, engine, optimizer, variables, states, number):
        self._engine = engine
        self.optimizer = optimizer
        self.variables = variables
        self.states = states
        reduced = [*map(plain, variables), *states]
        self._specs = [
            tf.TensorSpec(v.shape, pieces.wire_dtype(v.dtype, v.name))
            for v in reduced
        ]
        self._names = [v.name.split(":")[0] for v in reduced]
        self._layout = pieces.Layout(self._specs)
        self._name = f"{number}/{self._specs}"
        # All lanes of the step that it was part of last, in order.
        self.step_lanes = ()
        self.number = engine.journal.add(self._layout.piece_bytes())
        self._rate = private_keras.learning_rate_variable(optimizer)
        # A loss scale overflows on purpose, and has to see it.
        self._checks_gradients = not isinstance(
            optimizer, keras.optimizers.LossScaleOptimizer
        )
        self._reduce_eagerly = _traced(self._reduce)
        self._round = _traced(self._build_round)
        # The same rounding on all workers, with a batch or without: a graph of
        # its own, which TensorFlow rewrites without regard to what is around.
        self._finish = _traced(
            self._build_finish, private_tensorflow.STAYS_A_FUNCTION
        )
        self._finish_eagerly = _traced(self._call_finish)

    @property
    def shared(self):
        """All variables that its step may change, a list."""
        slots = () if self.optimizer is None else self.optimizer.variables
        return [*map(plain, [*self.variables, *slots]), *self.states]

    def step(self, gradients, before):
        """Builds a step, or takes it when executing eagerly.

        Args:
          gradients: Tensors, one for each of `variables`.
          before: Values of `states` before the step, tensors.
        """
        began = tf.timestamp()
        values = [*gradients, *(state.read_value() for state in self.states)]
        values = [
            tf.cast(value, spec.dtype)
            for value, spec in zip(values, self._specs, strict=True)
        ]
        eagerly = tf.executing_eagerly()
        reduce = self._reduce_eagerly if eagerly else self._reduce
        wrote = self._engine.wrote.read_value()
        with tf.control_dependencies([began]):
            vectors, numbers, mine = reduce(values, wrote)
        finish = self._finish_eagerly if eagerly else self._finish
        tail, _ = tail_lib.split(finish(vectors, numbers, before))
        self._engine.note(tail)
        if self.optimizer is not None:
            self._engine.journal.write(
                began=began,
                ended=tail.present,
                accepted=mine > 0.0,
                lane=self.number,
            )

    def _reduce(self, values, wrote):
        """Builds the sums of a step; and whether this worker's part counts."""
        check, one = self._engine.check, tf.ones([])
        gradients = states = one
        first = 0 if self._checks_gradients else len(self.variables)
        if check.looks and first == 0:
            vectors, finite = check.checked(
                self._layout.vectors(values), self._layout.tensors, self._names
            )
            gradients = states = tf.cast(finite, tf.float32)
        else:
            if check.looks and self.states:
                kept, finite = check.checked(
                    values[first:], list, self._names[first:]
                )
                values = [*values[:first], *kept]
                states = tf.cast(finite, tf.float32)
            vectors = self._layout.vectors(values)
        mine = tail_lib.Tail(one, gradients, states, wrote=wrote)
        return *self._sum(vectors, mine), gradients

    def _sum(self, vectors, mine):
        """Builds the sums over all workers of vectors and of a `Tail`."""
        is_chief = self._engine.is_chief
        rate = None if self._rate is None else self._rate.value
        numbers = tf.concat(
            [
                tf.stack([tf.cast(x, tf.float32) for x in mine]),
                *tail_lib.rate_numbers(rate, is_chief),
            ],
            0,
        )
        return self._layout.reduce(
            vectors,
            numbers,
            lambda vector, piece: self._engine.collectives.sum(
                vector, f"{self._name}/{piece}", piece
            ),
        )

    def _call_finish(self, vectors, numbers, before):
        return self._finish(vectors, numbers, before)

    def _build_finish(self, vectors, numbers, before):
        """Builds the chief's rate, the means of state, and Keras's step."""
        tail, rate = tail_lib.split(numbers)
        if self._rate is not None:
            self._rate.assign(tail_lib.rate_of(rate, self._rate.value.dtype))
        most = tf.maximum(tail.gradients, 1.0)
        means = self._layout.tensors(
            [tf.math.divide(v, tf.cast(most, v.dtype)) for v in vectors]
        )
        first = len(self.variables)
        with self._engine.applying(), self._engine.replica_context():
            factor = most / tf.maximum(tail.states, 1.0)
            for state, mean, old in zip(
                self.states, means[first:], before, strict=True
            ):
                mean = mean * tf.cast(factor, mean.dtype)
                mean = pieces.of_dtype(mean, state.dtype)
                state.assign(tf.where(tail.states > 0.0, mean, old))
            if self.optimizer is not None:
                self._apply(means[:first], tail)
        return numbers

    def _apply(self, means, tail):
        gradients = [
            pieces.of_dtype(mean, plain(variable).dtype)
            for mean, variable in zip(means, self.variables, strict=True)
        ]

        def apply(*gradients):
            self.optimizer.apply(list(gradients), self.variables)
            self._engine.journal.count_update()

        if self._engine.check.looks and self._checks_gradients:
            # All may have been left out.
            _call_if(tail.gradients > 0.0, apply, gradients)
        else:
            apply(*gradients)

    # Without a batch.

    def follow(self, **mine):
        """Takes part in a step of the others, if they take one.

        Args:
          **mine: Numbers of this worker, of `Tail`.

        Returns:
          The `Tail` of all, of floats.
        """
        mine = tail_lib.Tail(**mine)
        vectors, numbers = self._engine.collectives.call(
            self._round, tf.constant(mine, tf.float32)
        )
        tail = tail_lib.Tail(*numbers.numpy()[: tail_lib.LENGTH].tolist())
        if tail.present:
            before = [state.read_value() for state in self.states]
            self._finish_eagerly(vectors, numbers, before)
        return tail

    def _build_round(self, mine):
        zeros = [tf.zeros(spec.shape, spec.dtype) for spec in self._specs]
        mine = tail_lib.Tail(*tf.unstack(mine))
        return self._sum(self._layout.vectors(zeros), mine)


def _traced(method, attributes=None):
    # TensorFlow warns of a method that is traced for many objects.
    return tf.function(
        functools.partial(method),
        autograph=False,
        experimental_attributes=attributes,
    )


def _call_if(condition, function, tensors):
    """Builds the call of a function without results, under a condition.

    `tf.cond` would become a switch for each tensor and each variable: for a
    model of 122 variables a fifth of the step.
    """
    specs = [tf.TensorSpec(t.shape, t.dtype) for t in tensors]
    called = tf.function(function, autograph=False).get_concrete_function(
        *specs
    )
    captured = called.captured_inputs
    specs += [tf.TensorSpec(c.shape, c.dtype) for c in captured]
    skipped = tf.function(lambda *_: None, autograph=False)
    tf.raw_ops.If(
        cond=condition,
        input=[*tensors, *captured],
        Tout=[],
        then_branch=called,
        else_branch=skipped.get_concrete_function(*specs),
    )
