"""One optimizer's step on this worker, and what it exchanges with others."""

import functools

import keras
import ml_dtypes
import tensorflow as tf

from tfdist import model_optimizers
from tfdist.all_reduce import branches
from tfdist.all_reduce.variables import Kind
from tfdist.all_reduce.variables import plain
from tfdist.peers import flat
from tfdist.peers import own_state
from tfdist.peers import refusals


class PeerLane:
    """One optimizer, and the variables that it trains.

    A step is Keras's own with this worker's gradients. With `w` the
    parameters before it, `w'` after it, and `lr` the learning rate,

        u = (w - w') / lr
        m, r = encode(u + r)
        w = w - lr * decode(m) - (lr * decode(m) of each message of others)

    and `m` is sent with `lr`. Momentum, weight decay and clipping are in `u`,
    and count once.

    Args:
      engine: The `PeerEngine`.
      optimizer: A Keras optimizer.
      variables: Keras variables that it trains, a list.
      number: Of this lane, the same on all workers.
    """

    def __init__(self, engine, optimizer, variables, number):
        self._engine = engine
        self.optimizer = optimizer
        self.variables = variables
        self._plain = list(map(plain, variables))
        refusals.check(optimizer, variables, engine.strategy_name)
        # All lanes of the step that it was part of last, in order.
        self.step_lanes = ()
        self.number = engine.journal.add([])
        self.channels = []
        rates = model_optimizers.rates_of(optimizer)
        # Of an optimizer that leaves steps to another one, that of the other.
        shown = [one for one in rates if one is optimizer.learning_rate]
        (rate,) = shown or (rates if len(rates) == 1 else [None])
        groups = flat.groups(self._plain, engine.strategy_name)
        for k, group in enumerate(groups):
            self.channels.append(
                engine.make_channel(
                    f"{engine.name}/lane{number}/{k}",
                    group,
                    None if rate is None else rate.value,
                )
            )
        self._settings = model_optimizers.settings_of(optimizer)
        self._step_eagerly = _traced(self._build_step)
        self._receive_eagerly = _traced(self._build_receive)

    def follow_settings(self):
        """Called when a step is built: it has the optimizer's settings of now.

        A step that is traced does anyway.
        """
        settings = model_optimizers.settings_of(self.optimizer)
        if settings != self._settings:
            self._settings = settings
            self._step_eagerly = _traced(self._build_step)

    @property
    def shared(self):
        """All variables that a worker takes over from the chief, a list."""
        slots = map(plain, self.optimizer.variables)
        # But for gradients of this worker that are yet to be applied.
        return [*self._plain, *(v for v in slots if not _is_own(v))]

    @property
    def agreeing(self):
        """Variables whose values all workers have to hold before a step."""
        return self._plain

    def step(self, gradients, assigned, counts_as_step):
        """Builds a step, or takes it when executing eagerly.

        Args:
          gradients: Tensors, one for each of `variables`.
          assigned: Pairs of a variable that the step has assigned, which is
            this worker's own state, and its value before.
          counts_as_step: Unused: each has an optimizer, and counts.
        """
        eagerly = tf.executing_eagerly()
        step = self._step_eagerly if eagerly else self._build_step
        states, names = own_state.floats(assigned)
        counts = step(gradients, states, names)
        own_state.restore_unless(counts, assigned)

    def _build_step(self, gradients, states, names):
        """Builds a step; returns whether the state that it assigned counts.

        Args:
          gradients: As of `step`.
          states: Values of the state, tensors.
          names: Names of the state's variables, a tuple.
        """
        began = tf.timestamp()
        engine = self._engine
        rate = tf.convert_to_tensor(self.optimizer.learning_rate)
        rate = tf.cast(rate, tf.float64)
        befores = self._vectors()
        with tf.control_dependencies([*befores, rate]):
            gradients = [tf.identity(gradient) for gradient in gradients]
        counts, keeps_state = self._take(gradients, states, names)
        afters = self._vectors()
        sent, size, staleness = (tf.zeros([], tf.int64) for _ in range(3))
        for channel, before, after in zip(
            self.channels, befores, afters, strict=True
        ):
            vector, other, out, _, came, stale = channel.exchange(
                before, after, rate
            )
            self._assign(channel, vector, other)
            sent, size = sent + out, size + came
            staleness = tf.maximum(staleness, stale)
        engine.journal.write(
            began=began,
            ended=tf.identity(size),
            accepted=counts,
            lane=self.number,
            extras=[sent, size, staleness],
        )
        return keeps_state

    def _take(self, gradients, states, names):
        """Builds Keras's step.

        Returns:
          Whether the gradients count, and whether the state does.
        """
        engine, always = self._engine, tf.constant(True)
        if not engine.check.looks:
            self._apply(*gradients)
            return always, always
        # A loss scale overflows on purpose, and has to see it.
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            finite = own_state.checked(engine.check, states, names)
            self._apply(*gradients)
            return always, finite
        checked, counts = engine.check.checked(
            [*gradients, *states],
            list,
            [*(v.name for v in self._plain), *names],
            lambda tensors: [tf.zeros_like(tensor) for tensor in tensors],
        )
        gradients = checked[: len(gradients)]
        branches.choose(counts, self._apply, lambda *tensors: [], gradients)
        return counts, counts

    def _apply(self, *gradients):
        engine = self._engine
        with (
            engine.applying(),
            engine.replica_context(),
            engine.journal.counting_update(self.optimizer),
            engine.updating(),
        ):
            self.optimizer.apply(list(gradients), self.variables)
        return []

    def _vectors(self):
        """Builds the parameters as flat vectors, one for each channel."""
        return [
            channel.group.vector(
                [self._plain[k].read_value() for k in channel.group.places]
            )
            for channel in self.channels
        ]

    def _assign(self, channel, vector, condition):
        """Builds the assignment of the parameters, on a condition."""
        variables = [self._plain[k] for k in channel.group.places]

        def assign():
            dtypes = [variable.dtype for variable in variables]
            values = channel.group.tensors(vector, dtypes)
            with self._engine.applying():
                for variable, value in zip(variables, values, strict=True):
                    variable.assign(value, read_value=False)
            return tf.constant(True)

        tf.cond(condition, assign, lambda: tf.constant(False))

    # Between steps.

    def read(self):
        """Returns the parameters, by name of a channel a NumPy vector."""
        vectors = zip(self.channels, self._vectors(), strict=True)
        return {channel.name: vector.numpy() for channel, vector in vectors}

    def epsilon(self, channel):
        """The epsilon of the coarsest dtype of a channel's variables."""
        dtypes = {self._plain[k].dtype for k in channel.group.places}
        return max(float(ml_dtypes.finfo(d.as_numpy_dtype).eps) for d in dtypes)

    def put(self, vectors):
        """Assigns parameters.

        Args:
          vectors: As `read` returns them.
        """
        for channel in self.channels:
            value = tf.constant(vectors[channel.name], channel.group.dtype)
            self._assign(channel, value, tf.constant(True))

    def receive(self, kept=False):
        """Applies what others have sent; returns the number of updates.

        Args:
          kept: Whether to apply those that were kept instead.
        """
        return int(self._receive_eagerly(kept).numpy())

    def _build_receive(self, kept):
        total = tf.zeros([], tf.int64)
        for channel, vector in zip(self.channels, self._vectors(), strict=True):
            vector, count, size = channel.merged(vector, kept)
            self._engine.journal.note_between(size)
            self._assign(channel, vector, count > 0)
            total += count
        return total


def _is_own(variable):
    return getattr(variable, "kind", None) is Kind.OWN


def _traced(method):
    # TensorFlow warns of a method that is traced for many objects.
    return tf.function(functools.partial(method), autograph=False)
