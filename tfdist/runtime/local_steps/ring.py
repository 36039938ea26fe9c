"""Exchanges between workers alone, by the collectives of `tfdist.all_reduce`.

Each worker holds all parameters as one process without servers does, and
makes the same updates of the same means, so that all hold the same bits.

An exchange has two parts. A *call* tells what each worker brings: the `Tail` of
the all-reduce engine, how much its steps count, and of which optimizer they
are. Then, if anybody has taken steps, their means are made. A worker without
a batch takes part in the exchanges of the others (`ring_engine`).
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tfdist import private_keras
from tfdist.all_reduce import pieces
from tfdist.all_reduce import tail as tail_lib
from tfdist.cluster import collective_sums
from tfdist.runtime.local_steps import communication
from tfdist.runtime.variables import traced_calls

# Weight, number of the inner optimizer, and its square.
_CALL_LENGTH = tail_lib.LENGTH + 3


class Called(NamedTuple):
    """What all workers bring to an exchange.

    Attributes:
      tail: The sums of their `Tail`, floats; `gradients` is the number of
        workers that bring steps.
      weight: How much these count together, examples or workers, a float.
      number: Of the inner optimizer whose steps they are; None without any.
    """

    tail: tail_lib.Tail
    weight: float
    number: int | None


@dataclasses.dataclass
class RingRound(communication.Round):
    """One exchange that is being built; see `Round`.

    Attributes:
      share: Of this worker in the means, scalar float64 tensor.
      began: When its steps were done, seconds since the epoch, the same.
      waited: Seconds that it has waited for others, the same.
      num_bytes: What it has sent so far, int.
      counts: Whether anybody's steps do, a scalar bool tensor.
    """

    share: tf.Tensor
    began: tf.Tensor
    waited: tf.Tensor
    num_bytes: int
    counts: tf.Tensor


class Ring:
    """The exchanges of one strategy.

    Args:
      collectives: The `Collectives`.
      store: The `ParameterStore`, whose names are alike on all workers.
      weighted: Whether steps count by their examples.
      is_chief: Whether this worker is the chief.
      follows_chief: Whether all take over its learning rates.

    Attributes:
      follows_chief: The same.
      inners: What may be exchanged, a list of `Inner`, in the order in which
        they were made, the same on all workers.
      num_workers: Number of workers.
      told: The `Told` of the exchanges within steps.
    """

    def __init__(
        self, collectives, store, *, weighted, is_chief, follows_chief
    ):
        self._collectives = collectives
        self._store = store
        self._weighted = weighted
        self._is_chief = is_chief
        self._traced = traced_calls.Traced(store)
        self.follows_chief = follows_chief
        self.inners = []
        self.num_workers = collectives.num_workers
        self.told = tail_lib.Told()

    # An exchange.

    def call(self, number, mine):
        """Tells what this worker brings outside of a step, asks what all do.

        Args:
          number: Of the inner optimizer whose steps it has taken, or None.
          mine: Its `Tail`, of floats.

        Returns:
          The `Called`.
        """

        def build(tail):
            weight = 0.0
            if number is not None:
                weight = self._weight(self.inners[number])
            return self._build_call(number, weight, tail)

        called = self._traced.call(
            f"call/{number}", build, tf.constant(mine, tf.float64)
        )
        *tail, weight, numbers, _ = called.numpy().tolist()
        tail = tail_lib.Tail(*tail)
        bring = tail.gradients
        return Called(tail, weight, round(numbers / bring) if bring else None)

    def _sum(self, vector, name, piece=None):
        # The store's names begin with the strategy's.
        name = self._store.name_of(f"ring/{name}")
        return self._collectives.sum(vector, name, piece)

    def _build_call(self, number, weight, tail):
        """Builds the sums of a call, a float64 vector."""
        mine = [weight, number or 0, (number or 0) ** 2]
        mine = tf.stack([tf.cast(x, tf.float64) for x in mine])
        called = self._sum(tf.concat([tail, mine], 0), "call")
        tail, rest = tail_lib.split(called)
        _, number, square = tf.unstack(rest)
        # All numbers are the same if their mean's square is the squares' mean.
        alike = tf.debugging.Assert(
            tf.equal(number * number, square * tail.gradients),
            [
                "Workers exchange steps of different optimizers. Without "
                "servers all have to train the same model at the same time."
            ],
        )
        with tf.control_dependencies([alike]):
            return tf.identity(called)

    def build_round(self, inner):
        """Builds the call of a worker with a batch; a `RingRound`."""
        mine = tail_lib.Tail(present=1.0, gradients=1.0)
        with tf.device(self._store.worker_device):
            began = tf.timestamp()
            with tf.control_dependencies([began]):
                weight = self._weight(inner)
                called = self._build_call(
                    self._number_of(inner),
                    weight,
                    tf.constant(mine, tf.float64),
                )
            with tf.control_dependencies([called]):
                waited = tf.timestamp() - began
            tail, rest = tail_lib.split(called)
            self.told.note(tail)
            share = tf.math.divide_no_nan(weight, rest[0])
            counts = rest[0] > 0
        return RingRound(True, share, began, waited, self._call_bytes(), counts)

    def exchange(self, number, all_weight, takes_part, seconds, build):
        """Makes an exchange that was called, outside of a step.

        Args:
          number: Of the inner optimizer.
          all_weight: How much all workers' steps count, a float.
          takes_part: Whether this worker has taken steps.
          seconds: When the call began, since the epoch, and how long it took.
          build: Called with the `Inner` and the `RingRound` to build it.
        """
        inner = self.inners[number]

        def build_with(weight, began, waited):
            with tf.device(self._store.worker_device):
                share = tf.zeros([], tf.float64)
                if takes_part:
                    mine = self._weight(inner)
                    share = tf.math.divide_no_nan(mine, weight)
                this_round = RingRound(
                    takes_part,
                    share,
                    began,
                    waited,
                    self._call_bytes(),
                    weight > 0,
                )
                build(inner, this_round)

        self._traced.call(
            f"exchange/{number}/{takes_part}",
            build_with,
            *(tf.constant(x, tf.float64) for x in (all_weight, *seconds)),
        )

    def rate_of(self, optimizer):
        """The rate of an optimizer that the chief decides, or None.

        Args:
          optimizer: A Keras optimizer.

        Returns:
          A `keras.Variable`.
        """
        if not self.follows_chief:
            return None
        return private_keras.learning_rate_variable(optimizer)

    def _call_bytes(self):
        return self._num_bytes([_CALL_LENGTH * tf.float64.size])

    def _num_bytes(self, sizes):
        return collective_sums.bytes_sent(sizes, self.num_workers)

    def _number_of(self, inner):
        return next(k for k, i in enumerate(self.inners) if i is inner)

    def _weight(self, inner):
        """Weight of a worker's steps, a scalar float64 tensor."""
        # In a mean one NaN is as good as all: such steps do not count.
        finite = tf.cast(inner.finite.read_value(), tf.float64)
        if not self._weighted:
            return finite
        return finite * tf.cast(inner.examples.read_value(), tf.float64)

    def average(self, inner, records, this_round, finite=None):
        """Builds the means over all workers of what is to be done.

        With them comes the chief's learning rate.

        Args:
          inner: The `Inner`.
          records: List of `Update`, of one tensor each.
          this_round: The `RingRound`.
          finite: Whether what this worker has done is, a scalar bool tensor;
            None if nobody has looked.

        Returns:
          Such a list, and the tensors that its members have.
        """
        values = [record.args[0] for record in records]
        shares = []
        for value, record in zip(values, records, strict=True):
            name = record.variable.name
            share = tf.cast(value, pieces.wire_dtype(value.dtype, name))
            # What is not a number does not count, whatever its share.
            counts = this_round.takes_part
            if counts and finite is not None:
                share = tf.where(finite, share, tf.zeros_like(share))
            factor = this_round.share if counts else 0.0
            shares.append(share * tf.cast(factor, share.dtype))
        specs = [tf.TensorSpec(share.shape, share.dtype) for share in shares]
        layout = pieces.Layout(specs)
        rate, tail = self.rate_of(inner.optimizer()), None
        if rate is not None:
            (tail,) = tail_lib.rate_numbers(rate.value, self._is_chief)
        name = f"exchange/{self._number_of(inner)}/{specs}"
        vectors, tail_sum = layout.reduce(
            layout.vectors(shares),
            tail,
            lambda vector, piece: self._sum(vector, f"{name}/{piece}", piece),
        )
        numbers = 0
        if rate is not None:
            numbers = tail.shape.num_elements()
            chiefs = tail_lib.rate_of(tail_sum, rate.value.dtype)
            rate.value.assign(chiefs, read_value=False)
        this_round.num_bytes += self._num_bytes(layout.piece_bytes(numbers))
        means = [
            pieces.of_dtype(mean, value.dtype)
            for mean, value in zip(layout.tensors(vectors), values, strict=True)
        ]
        averaged = [
            dataclasses.replace(record, args=(mean,))
            for record, mean in zip(records, means, strict=True)
        ]
        return averaged, means
