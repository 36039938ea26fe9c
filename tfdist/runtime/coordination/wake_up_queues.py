"""Queues on the first server in which workers sleep until they may go on.

A token says "look", not "go". So it does no harm if one is lost with a worker
that is killed, or if one too many is there.
"""

import tensorflow as tf


class WakeUpQueues:
    """One queue per worker; all is built on the device in scope.

    Args:
      store: The `ParameterStore`.
      name: Prefix of their names, the same on all workers.
      num_workers: Number of workers.
    """

    def __init__(self, store, name, num_workers):
        self._store = store
        self._name = name
        self._num_workers = num_workers

    def _queue(self, worker):
        return self._store.queue(0, f"{self._name}/{worker}")

    def sleep(self, worker):
        """Builds: waits for a token; returns the operation."""
        (token,) = tf.raw_ops.QueueDequeueV2(
            handle=self._queue(worker), component_types=[tf.int64]
        )
        return token.op

    def wake(self, workers):
        """Builds: gives a token to each of `workers`, a bool vector."""

        def send():
            for worker in range(self._num_workers):
                self._send(worker, workers[worker])
            return True

        self._if(tf.reduce_any(workers), send)

    def wake_again(self, worker, condition):
        """Builds: if `condition`, sees to it that there is a token."""
        empty = tf.equal(self._size(worker), 0)
        self._send(worker, tf.logical_and(condition, empty))

    def drain(self, worker):
        """Builds: throws away the tokens that are there."""
        size = self._size(worker)

        def take():
            tf.raw_ops.QueueDequeueManyV2(
                handle=self._queue(worker), n=size, component_types=[tf.int64]
            )
            return True

        self._if(size > 0, take)

    def _size(self, worker):
        return tf.raw_ops.QueueSizeV2(handle=self._queue(worker))

    def _send(self, worker, condition):
        def send():
            tf.raw_ops.QueueEnqueueV2(
                handle=self._queue(worker), components=[tf.ones([], tf.int64)]
            )
            return True

        self._if(condition, send)

    def _if(self, condition, build):
        def on_server():
            with tf.device(self._store.devices[0]):
                return build()

        tf.cond(condition, on_server, lambda: False)
