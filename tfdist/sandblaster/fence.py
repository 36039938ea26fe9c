"""Terms of coordinators: only that of the present term changes the shards.

A process of the chief that was cut off or stopped may wake up when another one
has taken its place, and so may a command that it had sent. Each shard knows the
number of the present term, and each command carries that of its sender. They
are compared under the shard's lock, which is held until the command is done.
"""

import contextlib
import random

import numpy as np
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.cluster import resource_values

_SUPERSEDED = (
    "Another process of the chief has begun to coordinate: this one must end."
)
# A term's number, times this, is that of its first ticket.
TICKETS = 2**32
_TERMS = 2**30

TERM = tf.TensorSpec([], tf.int64)
"""Argument of the functions that a `Fence` guards."""


class Fence:
    """The terms of one strategy's coordinators, on all shards.

    A shard is whole when it holds all that it should. One whose process was
    started again is in no term, and not whole.

    Args:
      namespace: Prefix of the resources' names.
      devices: List of the devices of the shards, in order.
      here: This process's device.

    Attributes:
      term: Number of this process's term, from 1; 0 before it has one.
      devices: Tuple of the devices of the shards.
    """

    def __init__(self, namespace, devices, here):
        self.term = 0
        self._own = []
        self._has_begun = False
        self._namespace = namespace
        self.devices = tuple(devices)
        self._here = here
        self._swap = _traced(
            self._build_swap,
            tf.TensorSpec([None], tf.int64),
            TERM,
            tf.TensorSpec([], tf.bool),
        )
        self._settle = _traced(self._build_settle, TERM)
        self._check = _traced(self._build_check, TERM)
        self._look = _traced(self._build_look)

    def begin(self):
        """Begins a term: the first one of this process whoever has coordinated.

        What this or another process has sent in a term before has no effect
        from now on.

        Returns:
          Whether each shard is whole, a list of bools.

        Raises:
          RuntimeError: Another process has begun to coordinate since this one
            has.
        """
        before = tf.constant(self._own, tf.int64)
        # A system's random numbers: no seed makes two processes draw the same.
        self.term = random.SystemRandom().randrange(1, _TERMS)
        # It may be there on some shards when the call has failed.
        self._own.append(self.term)
        allowed, whole = self._swap(
            before, self._number(), tf.constant(not self._has_begun)
        ).numpy()
        if not all(allowed):
            raise RuntimeError(_SUPERSEDED)
        self._has_begun = True
        return [bool(one) for one in whole]

    def settle(self):
        """All shards are whole."""
        self._settle(self._number())

    def check(self):
        """Looks whether all shards are there, in this process's term.

        Raises:
          tf.errors.OpError: They are not.
        """
        self._check(self._number())

    def missing(self):
        """Returns the numbers of the shards that are not whole, a list.

        While the coordinator begins a term, or if there was none, all are.
        """
        found = self._look().numpy()
        if len({term for term, _ in found}) > 1:
            return list(range(len(found)))
        return [k for k, (_, whole) in enumerate(found) if not whole]

    def refuse(self, term):
        """Refuses to go on after another process.

        Args:
          term: That of a shared record, or None.

        Raises:
          RuntimeError: Another process has begun to coordinate.
        """
        if term is not None and term not in self._own:
            raise RuntimeError(_SUPERSEDED)

    def explain(self, error):
        """Raises what an error of a guarded function means.

        Args:
          error: A `tf.errors.OpError`.

        Raises:
          RuntimeError: Another process has begun to coordinate.
        """
        if _SUPERSEDED in error.message:
            raise RuntimeError(_SUPERSEDED) from error

    def _number(self):
        return tf.constant(self.term, tf.int64)

    @contextlib.contextmanager
    def guarded(self, k, term, *arrived):
        """Scope, in the device's, of what is built to change a shard.

        Args:
          k: Number of the shard.
          term: The sender's, a scalar int64 tensor.
          *arrived: Tensors on the shard's device that have to be there before
            its lock is taken: a sender that dies does not hold it.
        """
        with self._locked(k, tf.identity(term), *arrived):
            held = self._held(k)[0]
            check = tf.raw_ops.Assert(
                condition=tf.equal(held, tf.identity(term)),
                data=[tf.constant(_SUPERSEDED)],
            )
            private_tensorflow.run_independently(check)
            with tf.control_dependencies([check]):
                yield

    @contextlib.contextmanager
    def _locked(self, k, *arrived):
        graph = tf.compat.v1.get_default_graph()
        mutex = tf.raw_ops.MutexV2(shared_name=f"{self._namespace}/fence/{k}")
        private_tensorflow.run_independently(mutex.op)
        with tf.control_dependencies(arrived):
            lock = tf.raw_ops.MutexLock(mutex=mutex)
        before = len(graph.get_operations())
        with tf.control_dependencies([lock]):
            yield
        with tf.control_dependencies(graph.get_operations()[before:]):
            tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

    def _handle(self, k):
        return tf.raw_ops.VarHandleOp(
            dtype=tf.int64,
            shape=[2],
            shared_name=f"{self._namespace}/term/{k}",
        )

    def _held(self, k):
        """Builds a shard's term and whether it is whole, int64 `(2,)`."""
        handle = self._handle(k)
        private_tensorflow.run_independently(handle.op)
        return resource_values.build_read_or(handle, np.zeros(2, np.int64))

    def _hold(self, k, term, whole):
        tf.raw_ops.AssignVariableOp(
            resource=self._handle(k), value=tf.stack([term, whole])
        )

    def _build_swap(self, before, term, by_force):
        found = []
        for k, device in enumerate(self.devices):
            with tf.device(device):
                sent = list(map(tf.identity, (before, term, by_force)))
                with self._locked(k, *sent):
                    old, whole = tf.unstack(self._held(k))
                    allowed = (
                        sent[2]
                        | tf.equal(old, 0)
                        | tf.reduce_any(tf.equal(sent[0], old))
                    )
                    now = tf.where(allowed, sent[1], old)
                    with tf.control_dependencies([now]):
                        self._hold(k, now, whole)
                    found.append(tf.stack([tf.cast(allowed, tf.int64), whole]))
        with tf.device(self._here):
            return tf.stack(found, 1)

    def _build_settle(self, term):
        for k, device in enumerate(self.devices):
            with tf.device(device), self.guarded(k, term):
                self._hold(k, tf.identity(term), tf.constant(1, tf.int64))

    def _build_check(self, term):
        for k, device in enumerate(self.devices):
            with tf.device(device), self.guarded(k, term):
                pass

    def _build_look(self):
        found = []
        for k, device in enumerate(self.devices):
            with tf.device(device):
                found.append(self._held(k))
        with tf.device(self._here):
            return tf.stack(found)


def _traced(build, *signature):
    function = tf.function(build, input_signature=signature, autograph=False)
    return function.get_concrete_function()
