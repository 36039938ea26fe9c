"""Exchanges between workers alone, by ring collectives.

Each worker holds all parameters as one process without servers does, and
makes the same updates of the same means, so that all hold the same bits.

An exchange has two parts. A *call* tells what each worker brings: how much its
steps count, and whether it trains on. Then, if anybody has taken steps, their
means are made. A worker whose training has ended takes part in the exchanges
of the others with nothing, until nobody trains any more.

What is exchanged are gradients (`gradient_ring`), or what local steps have come
to (`ring_communication`).
"""

import dataclasses

import tensorflow as tf

from tfdist.cluster import tf_config
from tfdist.runtime.all_reduce import common_start
from tfdist.runtime.all_reduce import vector_sums
from tfdist.runtime.local_steps import communication
from tfdist.runtime.variables import traced_calls

# The launcher's flag that leaves a job out.
_LAUNCHED_WITHOUT = {"ps": "--num_ps=0", "evaluator": "--noevaluator"}


def check(config, partitioner):
    """Refuses what cannot be done without servers.

    Args:
      config: The `ClusterConfig`.
      partitioner: The strategy's `variable_partitioner`, or None.

    Raises:
      ClusterConfigError: The cluster has other tasks than workers.
      ValueError: Variables are to be split over servers.
    """
    for job in ("ps", "evaluator"):
        if job in config.spec:
            raise tf_config.ClusterConfigError(
                f'communication="ring" is for workers alone: TF_CONFIG'
                f'["cluster"] must have no job "{job}" (`tfdist launch '
                f"{_LAUNCHED_WITHOUT[job]}`). Received: jobs "
                f"{list(config.spec)}."
            )
    if partitioner is not None:
        raise ValueError(
            "Argument `variable_partitioner` must be None with "
            'communication="ring", which has no servers to split variables '
            f"over. Received: variable_partitioner={partitioner!r}"
        )


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
      peers: The `Peers`.
      store: The `ParameterStore`.
      timeout: Seconds to wait for workers that have not begun to train.
      weighted: Whether steps count by their examples.

    Attributes:
      start: The `CommonStart`.
      inners: What may be exchanged, a list; see `add`.
    """

    def __init__(self, peers, store, *, timeout, weighted=False):
        self._store = store
        self._sums = vector_sums.VectorSums(peers, store)
        self._weighted = weighted
        self._traced = traced_calls.Traced(store)
        self.start = common_start.CommonStart(
            peers, store, self._sums, timeout=timeout
        )
        # In the order in which they were made, the same on all workers.
        self.inners = []

    def add(self, inner):
        """Takes note of an `Inner`, or a `GradientLayout`, to be exchanged."""
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

        return Called(
            *self._traced.call(f"call/{number}/{training}", build).numpy()
        )

    def _build_call(self, number, training, weight):
        mine = Called(0, 0, int(training), 0, 0)
        if number is not None:
            mine = Called(weight, 1, int(training), number, number**2)
        called = self._sums.all_reduce(mine.stacked(), "call")
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
        num_bytes = self._sums.num_bytes([called])
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
                num_bytes = self._sums.num_bytes([Called(*[0] * 5).stacked()])
                this_round = RingRound(
                    takes_part, share, began, waited, num_bytes, weight > 0
                )
                build(inner, this_round)

        self._traced.call(
            f"exchange/{number}/{takes_part}",
            build_with,
            *(tf.constant(x, tf.float64) for x in (called.weight, *seconds)),
        )

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

        Args:
          inner: The `Inner`.
          records: List of `Update`, of one tensor each.
          this_round: The `RingRound`.
          finite: Whether what this worker has done is, a scalar bool tensor;
            None if nobody has looked.

        Returns:
          Such a list, and the tensors that its members have.
        """
        shares = []
        for record in records:
            (value,) = record.args
            share = tf.zeros_like(value)
            # What is not a number does not count, whatever its share.
            if this_round.takes_part:
                share = value * tf.cast(this_round.share, value.dtype)
                if finite is not None:
                    share = tf.where(finite, share, tf.zeros_like(share))
            shares.append(share)
        name = f"exchange/{self._number_of(inner)}"
        means, num_bytes = self._sums.of(shares, name)
        this_round.num_bytes += num_bytes
        averaged = [
            dataclasses.replace(record, args=(mean,))
            for record, mean in zip(records, means, strict=True)
        ]
        return averaged, means

    # An exchange of gradients.

    def average_gradients(self, layout, values, finite=None):
        """Builds the means of one step of those workers that take one.

        The call needs nothing of the step, and goes out while it is computed.

        Args:
          layout: The `GradientLayout`.
          values: List of tensors.
          finite: Whether they are, a scalar bool tensor; if not, they do not
            count. None if nobody has looked.

        Returns:
          A list of tensors, and a `RingRound`.
        """
        number = self._number_of(layout)
        with tf.device(self._store.worker_device):
            called = self._build_call(number, True, 1)
            with tf.control_dependencies([value.op for value in values]):
                began = tf.timestamp()
            counted = (
                tf.ones([]) if finite is None else tf.cast(finite, tf.float32)
            )
            pushed = [*values, counted]
            vectors = vector_sums.vectors_of(pushed)
            if finite is not None:
                vectors = {
                    dtype: _if_finite(finite, vector)
                    for dtype, vector in vectors.items()
                }
            with tf.control_dependencies([called]):
                sums = self._sums.of_vectors(vectors, f"exchange/{number}")
            count = sums[tf.float32][-1]
            share = 1.0 / tf.maximum(count, 1.0)
            means = {
                dtype: vector * tf.cast(share, dtype)
                for dtype, vector in sums.items()
            }
            num_bytes = self._sums.num_bytes([called, *vectors.values()])
            this_round = RingRound(
                True,
                share,
                began,
                tf.zeros([], tf.float64),
                num_bytes,
                count > 0.0,
            )
            return vector_sums.parts_of(means, pushed)[:-1], this_round

    def pass_on(self, number):
        """Takes part in an exchange of gradients that was called, with nothing.

        Args:
          number: Of the `GradientLayout`.
        """
        specs = [*self.inners[number].specs, tf.TensorSpec([], tf.float32)]

        def build():
            self._sums.of(
                [tf.zeros(s.shape, s.dtype) for s in specs],
                f"exchange/{number}",
            )

        self._traced.call(f"pass on/{number}", build)


def _if_finite(finite, vector):
    """`vector`, or zeros; a product would keep what is not a number."""
    return tf.cond(finite, lambda: vector, lambda: tf.zeros_like(vector))
