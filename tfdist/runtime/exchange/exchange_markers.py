"""Marks of the exchanges that have reached servers.

The exchange of a step goes to several servers at once, and each applies its
part under a lock of its own. Whoever reads all servers between two of these
parts sees an update that is half there, even under all locks at once. So each
exchange leaves a *mark* on every server that it changes: its number, and the
servers that it is for. All is there where the newest mark of each worker is
on all of its servers.
"""

import time

import numpy as np
import tensorflow as tf

from tfdist.cluster import resource_values
from tfdist.null_methods import empty_list
from tfdist.null_methods import nothing
from tfdist.runtime.variables.variables import Role

# Of exchanges that are no optimizer's step.
_OTHERS = "others"


class NoMarkers:
    """See `ExchangeMarkers`; where no exchange can be half done."""

    next_number = prepare = settle = nothing
    build_all = empty_list


class ExchangeMarkers:
    """The marks of one worker, and how all are read.

    Args:
      store: The `ParameterStore`.
      num_workers: Number of workers.
      worker_id: Number of this one.
    """

    def __init__(self, store, *, num_workers, worker_id):
        self._store = store
        self._num_workers = num_workers
        self._worker = worker_id
        # By sites.
        self._settlers = {}
        # No exchange of an earlier life of this worker has a greater one.
        self._number = store.worker_variable(
            tf.constant(time.time_ns() // 1000, tf.int64), "exchange_number"
        )

    def next_number(self):
        """Builds: the number of a new exchange, scalar int64 tensor."""
        self._number.assign_add(1, read_value=False)
        return self._number.read_value()

    def leave(self, shard, counter, number, shards):
        """Builds the mark of an exchange, on a server under its lock.

        Args:
          shard: Number of the server.
          counter: The optimizer's step counter, or None.
          number: Of the exchange, scalar int64 tensor on the server.
          shards: Numbers of all servers that the exchange is for.
        """
        meant = [int(k in shards) for k in range(self._store.num_shards)]
        tf.raw_ops.AssignVariableOp(
            resource=self._handle(shard, self._worker, _site(counter)),
            value=tf.concat([[number], tf.constant(meant, tf.int64)], 0),
        )

    def build_missing(self):
        """Builds: makes marks that nobody has left yet; none is complete."""
        store = self._store
        size = 1 + store.num_shards
        for shard in range(store.num_shards):
            lock = store.lock(shard)
            with tf.control_dependencies([lock.op]):
                made = [
                    self._make(shard, worker, site, size)
                    for site in self.sites()
                    for worker in range(self._num_workers)
                ]
            with tf.control_dependencies(made):
                store.unlock(shard, lock)

    def _make(self, shard, worker, site, size):
        handle = self._handle(shard, worker, site)
        with tf.device(self._store.devices[shard]):
            zeros = tf.zeros([size], tf.int64)
        return resource_values.build_put_if_missing(handle, zeros).op

    def settle(self):
        """Says of this worker's exchanges that none is on its way any more.

        After a server was lost, which knows no marks then: of the exchange
        that was under way it has what it will ever have.
        """
        sites = self.sites()
        if sites not in self._settlers:
            self._settlers[sites] = tf.function(
                self._build_settle, autograph=False
            )
        self._settlers[sites]()

    def _build_settle(self):
        store = self._store
        zeros = np.zeros(1 + store.num_shards, np.int64)
        for site in self.sites():
            handles = [
                self._handle(shard, self._worker, site)
                for shard in range(store.num_shards)
            ]
            found = []
            for handle in handles:
                value = resource_values.build_read_or(handle, zeros)
                with tf.device(store.worker_device):
                    found.append(tf.identity(value))
            with tf.device(store.worker_device):
                found = tf.stack(found)
                newest = found[tf.argmax(found[:, 0])]
            for shard, handle in enumerate(handles):
                with tf.device(store.devices[shard]):
                    tf.raw_ops.AssignVariableOp(
                        resource=handle, value=tf.identity(newest)
                    )

    def prepare(self, traced):
        """Makes the marks that nobody has left yet.

        Args:
          traced: A `Traced`, to do it with.
        """
        traced.call(("missing marks", self.sites()), self.build_missing)

    def sites(self):
        """The names of exchanges, a tuple of strings."""
        counters = [
            v for v in self._store.variables if v.role is Role.ITERATIONS
        ]
        return (_OTHERS, *(_site(counter) for counter in counters))

    def build_all(self, held):
        """Builds the reading of all marks, under all locks.

        Args:
          held: The operation after which the locks are held.

        Returns:
          A tensor by server, on it.
        """
        found = []
        for shard, device in enumerate(self._store.devices):
            with tf.control_dependencies([held]), tf.device(device):
                found.append(self.build_read(shard))
        return found

    def build_read(self, shard):
        """Builds the reading of a server's marks, in its scope.

        Returns:
          A tensor, int64 `(sites, workers, 1 + servers)`.
        """
        values = [
            tf.ensure_shape(
                tf.raw_ops.ReadVariableOp(
                    resource=self._handle(shard, worker, site), dtype=tf.int64
                ),
                [1 + self._store.num_shards],
            )
            for site in self.sites()
            for worker in range(self._num_workers)
        ]
        shape = [-1, self._num_workers, 1 + self._store.num_shards]
        return tf.reshape(tf.stack(values), shape)

    def _handle(self, shard, worker, site):
        return self._store.resource(
            shard,
            f"mark/{worker}/{site}",
            tf.int64,
            [1 + self._store.num_shards],
        )


def half_done(marks):
    """Exchanges that have reached some of their servers alone.

    Args:
      marks: int64 `(servers, sites, workers, 1 + servers)`.

    Returns:
      A dict of (worker, number of its exchange) to the numbers of the servers
      that it has not reached, a list.
    """
    numbers, meant = marks[..., 0], marks[..., 1:]
    newest = numbers.argmax(0)
    # Of the newest exchange of each site and worker, whom it is for.
    wanted = np.take_along_axis(meant, newest[None, ..., None], 0)[0]
    is_late = (numbers < numbers.max(0)) & (np.moveaxis(wanted, -1, 0) > 0)
    late = {}
    for server, site, worker in np.argwhere(is_late).tolist():
        exchange = worker, int(numbers.max(0)[site, worker])
        late.setdefault(exchange, []).append(server)
    return late


def _site(counter):
    return _OTHERS if counter is None else str(counter.ordinal)
