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

from tfdist import model_optimizers
from tfdist.all_reduce import pieces
from tfdist.all_reduce import rates as rates_lib
from tfdist.all_reduce import tail as tail_lib
from tfdist.cluster import collective_sums
from tfdist.runtime.exchange import exchange
from tfdist.runtime.local_steps import server_communication
from tfdist.runtime.variables import traced_calls

# A `Tail`; weight, number of an optimizer, and its square; float64.
_CALL_BYTES = (tail_lib.LENGTH + 3) * 8


class Called(NamedTuple):
    """The sums of what all workers bring to an exchange.

    Attributes:
      tail: The sums of their `Tail`, floats; `gradients` is the number of
        workers that bring steps.
      weight: How much these count together, examples or workers, a float.
      number: Of the optimizer whose steps they are; None without any.
    """

    tail: tail_lib.Tail
    weight: float
    number: int | None


@dataclasses.dataclass
class RingRound(server_communication.Round):
    """One exchange that is being built; see `Round`.

    Attributes:
      share: Of this worker in the means, scalar float64 tensor.
      began: When its steps were done, seconds since the epoch, the same.
      waited: Seconds that it has waited for others, the same.
      counts: Whether anybody's steps do, a scalar bool tensor.
      num_bytes: What it sends, int.
    """

    share: tf.Tensor
    began: tf.Tensor
    waited: tf.Tensor
    counts: tf.Tensor
    num_bytes: int = 0


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
        self.num_workers = collectives.num_workers
        self.told = tail_lib.Told()

    @property
    def has_failed(self):
        """Whether workers can meet no more, for good."""
        return self._collectives.has_failed

    # The call.

    def call(self, inner, mine):
        """Tells what this worker brings outside of a step, asks what all do.

        Args:
          inner: The `Inner` whose steps it has taken, or None.
          mine: Its `Tail`, of floats.

        Returns:
          The `Called`.
        """
        number = inner and number_of(inner)
        *tail, weight, numbers, _ = (
            self._traced.call(
                f"call/{number}",
                lambda tail: self._build_call(inner, tail),
                tf.constant(mine, tf.float64),
            )
            .numpy()
            .tolist()
        )
        tail = tail_lib.Tail(*tail)
        number = round(numbers / tail.gradients) if tail.gradients else None
        return Called(tail, weight, number)

    def _build_call(self, inner, tail):
        """Builds the sums of a call, a float64 vector."""
        mine = [0, 0, 0]
        if inner is not None:
            number = number_of(inner)
            mine = [self._weight(inner), number, number**2]
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

    def _sum(self, vector, name, piece=None):
        # The store's names begin with the strategy's.
        name = self._store.name_of(f"ring/{name}")
        return self._collectives.sum(vector, name, piece)

    def _weight(self, inner):
        """Weight of a worker's steps, a scalar float64 tensor."""
        # In a mean one NaN is as good as all: such steps do not count.
        finite = tf.cast(inner.finite.read_value(), tf.float64)
        if not self._weighted:
            return finite
        return finite * inner.weight()

    # The exchange that follows.

    def build_round(self, inner):
        """Builds the call of a worker with a batch; a `RingRound`."""
        mine = tail_lib.Tail(present=1.0, gradients=1.0)
        with tf.device(self._store.worker_device):
            began = tf.timestamp()
            with tf.control_dependencies([began]):
                called = self._build_call(inner, tf.constant(mine, tf.float64))
            with tf.control_dependencies([called]):
                waited = tf.timestamp() - began
            tail, rest = tail_lib.split(called)
            self.told.note(tail)
            return self._round(inner, True, rest[0], began, waited)

    def exchange(self, inner, weight, takes_part, seconds, build):
        """Makes an exchange that was called, outside of a step.

        Args:
          inner: The `Inner`.
          weight: How much all workers' steps count, a float.
          takes_part: Whether this worker has taken steps.
          seconds: When the call began, since the epoch, and how long it took.
          build: Called with the `Inner` and the `RingRound` to build it.
        """

        def build_with(*numbers):
            with tf.device(self._store.worker_device):
                build(inner, self._round(inner, takes_part, *numbers))

        self._traced.call(
            f"exchange/{number_of(inner)}/{takes_part}",
            build_with,
            *(tf.constant(x, tf.float64) for x in (weight, *seconds)),
        )

    def _round(self, inner, takes_part, weight, began, waited):
        share = tf.zeros([], tf.float64)
        if takes_part:
            share = tf.math.divide_no_nan(self._weight(inner), weight)
        return RingRound(takes_part, share, began, waited, weight > 0)

    def average(self, inner, records, this_round, finite=None):
        """Builds the means over all workers of what is to be done.

        With them come the chief's learning rates.

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
            if this_round.takes_part and finite is not None:
                share = tf.where(finite, share, tf.zeros_like(share))
            factor = this_round.share if this_round.takes_part else 0.0
            shares.append(share * tf.cast(factor, share.dtype))
        specs = [tf.TensorSpec(share.shape, share.dtype) for share in shares]
        rates = rates_lib.ChiefRates(self.rates_of(inner.optimizer()))
        layout = pieces.Layout(specs, rates.length)
        name = f"exchange/{number_of(inner)}/{specs}"
        vectors = layout.sums(
            layout.vectors(shares, rates.numbers(self._is_chief)),
            lambda vector, piece: self._sum(vector, f"{name}/{piece}", piece),
        )
        if rates.length:
            rates.assign(layout.tail(vectors))
        this_round.num_bytes = collective_sums.bytes_sent(
            [_CALL_BYTES, *layout.piece_bytes()], self.num_workers
        )
        means = [
            pieces.of_dtype(mean, value.dtype)
            for mean, value in zip(layout.tensors(vectors), values, strict=True)
        ]
        averaged = [
            dataclasses.replace(record, args=(mean,))
            for record, mean in zip(records, means, strict=True)
        ]
        return averaged, means

    def rates_of(self, optimizer):
        """The rates of a Keras optimizer that the chief decides.

        Returns:
          A list of `tf.Variable`; empty if each worker decides, or a schedule.
        """
        if not self.follows_chief:
            return []
        rates = model_optimizers.rates_of(optimizer)
        return [rate.value for rate in rates]


class RingExchange(exchange.ExchangeBuilder):
    """The exchange of a ring: each updates its own copy of all parameters.

    Args:
      this_round: The `RingRound`.
      **kwargs: See `ExchangeBuilder`.
    """

    def __init__(self, this_round, **kwargs):
        super().__init__(**kwargs)
        self._round = this_round

    def _started(self, before):
        with tf.device(self._store.worker_device):
            with tf.control_dependencies([before]):
                return tf.identity(self._round.began)

    def _gate(self):
        # All make the same update, also who has nothing that counts in it.
        return None if self._finite is None else self._round.counts

    def _count(self, request, staleness, new):
        request = dataclasses.replace(request, finite=self._finite)
        super()._count(request, staleness, new)

    def _ask(self, shards):
        responses, accepted = super()._ask(shards)
        responses = [
            dataclasses.replace(a, wait=a.wait + self._round.waited)
            for a in responses
        ]
        self._bytes_sent = [self._round.num_bytes]
        self._bytes_received = [self._round.num_bytes]
        return responses, accepted


def number_of(inner):
    """The number of an `Inner`, the same on all workers, an int."""
    return inner.clock.ordinal
