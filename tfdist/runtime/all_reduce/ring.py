"""Exchanges between workers alone, by ring collectives.

Each worker holds all parameters as one process without servers does, and
makes the same updates of the same means, so that all hold the same bits.

An exchange has two parts. A *call* tells what each worker brings: how much its
steps count, and whether it trains on. Then, if anybody has taken steps, their
means are made. A worker whose training has ended takes part in the exchanges
of the others with nothing, until nobody trains any more.

What is exchanged is what local steps have come to (`ring_communication`).
Gradients of every step are another engine's, `tfdist.all_reduce`.
"""

import dataclasses

import tensorflow as tf

from tfdist import private_keras
from tfdist.all_reduce import pieces
from tfdist.all_reduce import tail as tail_lib
from tfdist.cluster import collective_sums
from tfdist.runtime.local_steps import communication
from tfdist.runtime.variables import traced_calls


@dataclasses.dataclass
class Called:
    """Contribution to an exchange, of all workers or of one.

    Attributes:
      weight: How much the steps count, examples or workers.
      workers: How many workers have taken steps.
      training: How many train on.
      number: The number of the inner optimizer whose steps they are, times
        `workers`; and `square`, its square times `workers`.
    """

    weight: object
    workers: object
    training: object
    number: object
    square: object

    def stacked(self):
        """As a vector, float64."""
        numbers = (getattr(self, f.name) for f in dataclasses.fields(self))
        return tf.stack([tf.cast(n, tf.float64) for n in numbers])


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
      start: The `CommonStart`.
      weighted: Whether steps count by their examples.
      is_chief: Whether this worker is the chief.
      follows_chief: Whether all take over its learning rates.

    Attributes:
      start: The same.
      inners: What may be exchanged, a list; see `add`.
    """

    def __init__(
        self, collectives, store, start, *, weighted, is_chief, follows_chief
    ):
        self._is_chief = is_chief
        self._follows_chief = follows_chief
        self._collectives = collectives
        self._store = store
        self._weighted = weighted
        self._traced = traced_calls.Traced(store)
        self.start = start
        # In the order in which they were made, the same on all workers.
        self.inners = []

    def add(self, inner):
        """Takes note of an `Inner` to be exchanged."""
        self.inners.append(inner)

    # An exchange.

    def call(self, number, *, training):
        """Tells what this worker brings, and asks what all do.

        Args:
          number: Of the inner optimizer whose steps it has taken, or None.
          training: Whether it trains on.

        Returns:
          A `Called` of numbers, of all workers.
        """

        def build():
            weight = 0
            if number is not None:
                weight = self._weight(self.inners[number])
            return self._build_call(number, training, weight)

        key = f"call/{number}/{training}"
        return Called(*self._traced.call(key, build).numpy())

    def _sum(self, vector, name, piece=None):
        # The store's names begin with the strategy's.
        name = self._store.name_of(f"ring/{name}")
        return self._collectives.sum(vector, name, piece)

    def _build_call(self, number, training, weight):
        mine = Called(0, 0, int(training), 0, 0)
        if number is not None:
            mine = Called(weight, 1, int(training), number, number**2)
        called = self._sum(mine.stacked(), "call")
        _, workers, _, number, square = tf.unstack(called)
        # All numbers are the same if their mean's square is the squares' mean.
        alike = tf.debugging.Assert(
            tf.equal(number * number, square * workers),
            [
                "Workers exchange steps of different optimizers. Without "
                "servers all have to train the same model at the same time."
            ],
        )
        with tf.control_dependencies([alike]):
            return tf.identity(called)

    def build_round(self, inner):
        """Builds the call of a worker during training; a `RingRound`."""
        with tf.device(self._store.worker_device):
            began = tf.timestamp()
            with tf.control_dependencies([began]):
                weight = self._weight(inner)
                called = self._build_call(self._number_of(inner), True, weight)
            with tf.control_dependencies([called]):
                waited = tf.timestamp() - began
            share = tf.math.divide_no_nan(weight, called[0])
            counts = called[0] > 0
        num_bytes = self._num_bytes([collective_sums.num_bytes(called)])
        return RingRound(True, share, began, waited, num_bytes, counts)

    def exchange(self, number, called, takes_part, seconds, build):
        """Makes an exchange that was called, outside of a step.

        Args:
          number: Of the inner optimizer.
          called: The `Called`.
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
                call = Called(*[0] * 5).stacked()
                num_bytes = self._num_bytes([collective_sums.num_bytes(call)])
                this_round = RingRound(
                    takes_part, share, began, waited, num_bytes, weight > 0
                )
                build(inner, this_round)

        self._traced.call(
            f"exchange/{number}/{takes_part}",
            build_with,
            *(tf.constant(x, tf.float64) for x in (called.weight, *seconds)),
        )

    def _rate_of(self, inner):
        """The learning rate that the chief decides, a variable, or None."""
        if not self._follows_chief:
            return None
        return private_keras.learning_rate_variable(inner.optimizer())

    def _num_bytes(self, sizes):
        workers = self._collectives.num_workers
        return collective_sums.bytes_sent(sizes, workers)

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
        rate, tail = self._rate_of(inner), None
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
