"""Rows of tables, beside updates that average the gradients of all workers.

Dense parameters follow the ledger: one update is made of the mean of all
workers' gradients. Rows of tables are neither kept nor averaged. When a worker
carries out the decision that has accepted its gradient, each server updates
the rows of this gradient alone, divided by the number n of gradients in the
update. So the rows of all workers together move by the same mean, in n updates
instead of one. Nobody waits for the rows of another worker; but as that worker
takes no part in the next update before its own rows are updated, a look-up
misses rows of the last update at most (Lian et al., "Persia", KDD 2022,
arXiv 2111.05897: dense layers synchronous, embeddings asynchronous with bounded
staleness).
"""

import numpy as np
import tensorflow as tf

from tfdist.cluster import manifests
from tfdist.null_methods import empty_list
from tfdist.null_methods import nothing
from tfdist.runtime.exchange import records as records_lib
from tfdist.runtime.variables.server_scope import read_replica
from tfdist.runtime.variables.variables import Role

_UNKNOWN = np.int64(-1)


def are_in(record):
    """Whether a record is an update of rows of a table."""
    return (
        isinstance(record, records_lib.Update)
        and record.variable.role is Role.TABLE
    )


def of(ledger, iterations, records):
    """Returns the `OwnRows` of an exchange, or `NoRows`.

    Args:
      ledger: The `Ledger`, or None without an optimizer.
      iterations: The optimizer's step counter, or None.
      records: List of `Update` and `Mutation`.
    """
    if ledger is None or not any(map(are_in, records)):
        return NoRows()
    return OwnRows(ledger.row_counts, iterations)


def size_of_update(key, log, head):
    """Builds the number of gradients in the update that a gradient is part of.

    Args:
      key: That of the gradient, scalar int64.
      log: The log's columns, int64 vectors: key, staleness, first, count,
        worker, see `State`.
      head: Length of the log, scalar int64.

    Returns:
      A scalar int64 tensor; 0 if the update is not in the log.
    """
    keys, _, _, counts, _ = log
    ring = tf.shape(keys, tf.int64)[0]
    # The oldest entry first.
    places = tf.math.floormod(head + tf.range(ring), ring)
    keys, counts = tf.gather(keys, places), tf.gather(counts, places)
    seen = tf.cumsum(tf.cast(tf.equal(keys, key), tf.int64)) > 0
    return tf.reduce_sum(tf.boolean_mask(counts, seen & (counts > 0))[:1])


class RowCounts:
    """Counters of one optimizer's updates of rows, on the servers.

    Args:
      store: The `ParameterStore`.
      counter: Callable of a name and the number of a server that returns the
        `Counter` there.
    """

    def __init__(self, store, counter):
        self._counter = counter
        # By server: as this worker's last push has read it.
        self.pulled = [
            store.worker_variable(_UNKNOWN, f"rows_pulled_{k}")
            for k in range(store.num_shards)
        ]

    def build_forget(self):
        """Builds: this worker has pulled by other means than a push."""
        for shard in range(len(self.pulled)):
            self.build_set_pulled(shard, _UNKNOWN)

    def build_set_pulled(self, shard, number):
        """Builds: the worker has read `number`; returns the operation."""
        handle = self.pulled[shard].local_handle
        return tf.raw_ops.AssignVariableOp(resource=handle, value=number)

    def gradients(self, shard):
        """`Counter` of the gradients whose rows a server has updated."""
        return self._counter(manifests.ROW_GRADIENTS[1:], shard)

    def size(self, shard):
        """`Counter` that is the number of gradients in the last update."""
        return self._counter("update_size", shard)


class NoRows:
    """See `OwnRows`, whose part it takes where no table is updated."""

    note_log = build_others = build_count = build_note_size = nothing
    sent_to = read_on = set_pulled = empty_list


class OwnRows:
    """Builds the updates of the rows of one worker's gradient.

    Args:
      counts: The ledger's `RowCounts`.
      iterations: The optimizer's step counter.
    """

    def __init__(self, counts, iterations):
        self._counts = counts
        self._iterations = iterations
        # By server: gradients in the update, as the log says.
        self._sizes = {}

    def note_log(self, request, log, head):
        """Builds, on a server, the number of gradients in this one's update.

        Args:
          request: The `PushRequest`.
          log: See `size_of_update`, as the next one.
          head: The same.
        """
        key = request.extra[0]
        self._sizes[request.shard] = size_of_update(key, log, head)

    def sent_to(self, shard):
        """Tensors that a server gets with the gradient.

        `PushRequest.extra` has them from its third on.
        """
        return [
            read_replica(self._iterations),
            self._counts.pulled[shard].read_value(),
        ]

    def build_others(self, request):
        """Gradients whose rows were updated since this worker's last pull.

        Built before this worker's own are.

        Args:
          request: The `PushRequest`.

        Returns:
          A scalar int64 tensor; 0 if it has pulled by other means.
        """
        pulled = request.extra[3]
        now = self._counts.gradients(request.shard).read_or_zero()
        # A server that was started again counts from 0.
        late = tf.maximum(now - pulled, tf.zeros_like(now))
        is_known = tf.not_equal(pulled, _UNKNOWN)
        return tf.where(is_known, late, tf.zeros_like(late))

    def run(self, replay, request):
        """Builds the update of the rows of one table on one server.

        It is that of the step in which the gradient was computed: other
        workers may have had the server count that step.

        Args:
          replay: The `Replay`.
          request: The `PushRequest`.
        """
        # The server may have made later updates, of fewer workers.
        size = self._sizes[request.shard]
        last = self._counts.size(request.shard).read_or_zero()
        # None has been made yet if a worker that leaves does not wait.
        last = tf.maximum(last, tf.ones_like(last))
        size = tf.where(size > 0, size, last)
        sent = list(request.sent)
        values, _ = replay.gradient
        sent[values] /= tf.cast(size, sent[values].dtype)
        with request.section.with_counter(self._iterations, request.extra[2]):
            replay.run(sent, request.section)

    def build_count(self, shard):
        """Builds: one more gradient's rows are updated."""
        counter = self._counts.gradients(shard)
        counter.set(counter.read_or_zero() + 1)

    def build_note_size(self, shard, count):
        """Builds: an update was made of `count` gradients, scalar int64."""
        self._counts.size(shard).set(count)

    def read_on(self, shard):
        """Builds the reads that a worker pulls: a list of tensors."""
        return [self._counts.gradients(shard).read_or_zero()]

    def set_pulled(self, shard, read):
        """Builds the note of what was read; returns the operations.

        Args:
          shard: Number of the server.
          read: List of tensors whose last is that of `read_on`.
        """
        return [self._counts.build_set_pulled(shard, read[-1])]
