"""Synchronous SGD, with backup workers or without."""

import copy
from typing import Literal

import tensorflow as tf

from tfdist import checks
from tfdist.synchronization import base
from tfdist.synchronization.state import State


class Sync(base.Synchronization):
    """Each update averages one gradient each of the first N workers.

    Chen, Pan, Monga, Bengio and Jozefowicz, "Revisiting distributed
    synchronous SGD", ICLR 2016 workshop, algorithms 3 and 4. Of N + b workers
    the first N gradients computed from the current parameters make the
    update; those that come later are dropped, and their workers go on with
    the new parameters. Without backup workers this is synchronous SGD over
    all workers.

    Where fewer than N workers are left, the update is made of theirs. Of
    workers that have not been started, or were told to leave, N + b does not
    count any.

    Args:
      backup_workers: The paper's b, less than the number of workers.
      on_drop: What a worker does whose gradient was dropped: "next" goes on
        to the next batch, "retry" computes the same batch once more, with the
        new parameters, until it is part of an update. Metrics count each
        attempt.
    """

    waits = True
    averages = True
    drops = True

    def __init__(
        self,
        backup_workers: int = 0,
        *,
        on_drop: Literal["next", "retry"] = "next",
    ):
        backup_workers = checks.count("Sync: backup_workers", backup_workers, 0)
        if on_drop not in ("next", "retry"):
            raise ValueError(
                "Argument `on_drop` of Sync must be 'next' or 'retry'. "
                f"Received: on_drop={on_drop!r}"
            )
        self.backup_workers = backup_workers
        self.on_drop = on_drop

    def __repr__(self):
        if type(self) is not Sync:
            # It may have other settings.
            return super().__repr__()
        settings = f"backup_workers={self.backup_workers}"
        if self.on_drop != "next":
            settings += f", on_drop={self.on_drop!r}"
        return f"Sync({settings})"

    @property
    def retries(self) -> bool:
        """Whether a batch is computed again whose gradient was dropped."""
        return self.on_drop == "retry"

    @property
    def takes_all(self) -> bool:
        """Whether each update is the mean of all workers' gradients."""
        return not self.backup_workers and not self.retries

    def resolve(self, num_workers: int) -> base.Synchronization:
        if self.backup_workers >= num_workers:
            raise ValueError(
                "Argument `backup_workers` of Sync must be less than the "
                f"number of workers, {num_workers}. Received: "
                f"backup_workers={self.backup_workers}"
            )
        return self

    def alone(self) -> base.Synchronization:
        alone = copy.copy(self)
        alone.backup_workers = 0
        return alone

    def gradients_per_update(self, num_workers: int) -> int:
        # More may come: `resolve` is asked with all that there can be.
        return max(num_workers - self.backup_workers, 1)

    def decide(self, state: State) -> State:
        contributed = tf.equal(state.contributed, state.version + 1)
        current = tf.equal(state.pulled, state.version)
        accepted = state.arrived & current & ~contributed & ~state.unusable
        state = state.append(
            accepted,
            first=tf.cast(tf.equal(state.in_round, 0), tf.int64),
            count=0,
        )
        state = state.accept(accepted)
        there = state.present | tf.equal(state.contributed, state.version + 1)
        # Nobody waits for those whose gradient does not count; they wait for
        # the update, as if theirs were part of it.
        there &= contributed | ~(state.unusable & current)
        contributed = tf.equal(state.contributed, state.version + 1)
        enlisted = _number_of(state.enlisted | contributed)
        wanted = tf.minimum(enlisted - self.backup_workers, _number_of(there))
        complete = tf.logical_and(state.in_round > 0, state.in_round >= wanted)
        state = state.close_round(complete)
        # There is no update to wait for if nobody has a gradient that counts.
        nothing = tf.equal(state.in_round, 0) & ~tf.reduce_any(there)
        state = state.drop(state.unusable & nothing)
        # What is left is late, but for the second gradient of a worker that
        # was killed and has come back within one update: that is late soon.
        current = tf.equal(state.pulled, state.version)
        return state.drop(state.arrived & ~current)


def _number_of(workers):
    return tf.reduce_sum(tf.cast(workers, tf.int64))
