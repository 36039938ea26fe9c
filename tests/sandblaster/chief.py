"""A process of the chief on shards of one test's process."""

import types

import numpy as np
import pytest
import tensorflow as tf

from tests.sandblaster import functions
from tfdist.cluster import shared_record
from tfdist.sandblaster import coordinator
from tfdist.sandblaster import deposits
from tfdist.sandblaster import evaluation
from tfdist.sandblaster import fence
from tfdist.sandblaster import iteration_snapshots
from tfdist.sandblaster import line_search
from tfdist.sandblaster import minimizer
from tfdist.sandblaster import portion_worker
from tfdist.sandblaster import shards

PORTIONS, SHARDS, MEMORY = 3, 2, 3
MOST_PORTIONS = 8
START = np.array([-1.2, 1.0, -0.5, 2.0, 1.5])
LOST = tf.errors.UnavailableError(None, None, "a server is gone")


class Portions:
    """Rosenbrock's function, of which each portion is a third.

    Attributes:
        before: called before a portion is computed, with its number.
        factor: of the function.
    """

    def __init__(self):
        self.x = START.copy()
        self.before = lambda portion: None
        self.factor = 1.0

    def assign(self, vector):
        self.x = np.array(vector)

    def values(self):
        return tf.constant(self.x)

    def rounded(self, vector):
        return vector

    def compute(self, portion, goes_on):
        del goes_on
        self.before(portion)
        value, gradient = functions.rosenbrock(self.x)
        factor = self.factor * (portion + 1) / 2  # 3 in all.
        return tf.constant(factor * gradient), np.array([factor * value, 1.0])


class Chief:
    """A process of the chief, on shards of this process.

    Args:
        name: prefix of the resources' names.
        clock: of snapshots.
        samples: a `Samples` of as many portions as it says, each of another
            factor; `None` evaluates all three.
    """

    def __init__(self, name, clock=lambda: 0.0, samples=None):
        search = line_search.StrongWolfe()
        if samples is not None:
            search = line_search.FixedStep(0.1)
        device = tf.config.list_logical_devices("CPU")[0].name
        devices = [device] * SHARDS
        self.name = name
        self.records = [
            shared_record.SharedRecord(f"{name}/{record}", device, device)
            for record in ("board", "progress")
        ]
        self.fence = fence.Fence(name, devices, device)
        self.shards = shards.Shards(
            f"{name}/0",
            len(START),
            "float64",
            devices,
            device,
            minimizer.rows(MEMORY),
            self.fence,
        )
        self.deposits = deposits.Deposits(self.shards, f"{name}/0", device)
        held = types.SimpleNamespace(
            shards=self.shards,
            deposits=self.deposits,
            minimizer=minimizer.Minimizer(
                self.shards,
                MEMORY,
                search,
                gradient_tolerance=0.0,
                value_tolerance=-1.0,
                has_samples=samples is not None,
            ),
            stored=iteration_snapshots.StoredShards(self.shards),
        )
        self.portions = Portions()
        self.worker = portion_worker.PortionWorker(
            self.records[0],
            self.shards,
            self.deposits,
            self.portions,
            list(range(MOST_PORTIONS)),
            0,
        )
        self.snapshots = iteration_snapshots.IterationSnapshots(
            name, devices, device, clock
        )
        self.coordinator = coordinator.Coordinator(
            *self.records,
            held,
            self.snapshots,
            self.worker,
            evaluation.Evaluation(
                self.records[0],
                held,
                self.worker,
                PORTIONS,
                2.0,
                list,
                samples,
            ),
        )

    def begin(self, counted=0, fit=0):
        names = ("variables", "settings", "untrained", "batches", "data")
        description = dict.fromkeys(names, "")
        return self.coordinator.begin(
            fit, description, 0, self.portions.values(), None, counted
        )

    def go_on(self):
        self.worker.forget()
        self.coordinator.go_on()

    def iterate(self, number):
        """Values after some iterations, and the last point."""
        results = [self.coordinator.iterate(k) for k in range(number)]
        return [one["value"] for one in results], self.portions.x.tolist()

    def lose(self, shard):
        """A shard's process is started again: it holds nothing."""
        names = [
            f"{self.name}/0/{shard}/{vector}"
            for vector in (
                *minimizer.POINTS,
                *minimizer.GRADIENTS,
                minimizer.DIRECTION,
                minimizer.HISTORY,
                minimizer.BEFORE,
                *minimizer.AFTER,
            )
        ]
        names += [
            f"{self.name}/term/{shard}",
            f"{self.name}/0/sum of portions/{shard}",
        ]
        if shard == 0:
            names += [f"{self.name}/board", f"{self.name}/progress"]
        with tf.device(self.shards.devices[0]):
            for name in names:
                handle = tf.raw_ops.VarHandleOp(
                    dtype=self.dtype_of(name), shape=None, shared_name=name
                )
                tf.raw_ops.DestroyResourceOp(
                    resource=handle, ignore_lookup_error=True
                )
            tf.raw_ops.MapClear(
                dtypes=[tf.float64, tf.float64],
                shared_name=f"{self.name}/0/deposits/{shard}",
            )

    def dtype_of(self, name):
        """The dtype of a resource."""
        if name.endswith(("board", "progress")):
            return tf.string
        return tf.int64 if "/term/" in name else tf.float64


class Clock:
    """A clock on which some seconds pass whenever it is read."""

    def __init__(self):
        self.now = 0.0
        self.seconds = 1.0

    def __call__(self):
        self.now += self.seconds
        return self.now


def disturb(chief, evaluations, act):
    """Does something, once, in the middle of an evaluation.

    Args:
        chief: the `Chief`.
        evaluations: the evaluation, from 1.
        act: callable, after which a call fails.
    """
    seen = []

    def before(portion):
        seen.append(portion)
        if len(seen) == PORTIONS * (evaluations - 1) + 2:
            act()
            raise LOST

    chief.portions.before = before


def go_over(chief, number):
    """Iterates as a process does that has missed a server."""
    with pytest.raises(tf.errors.UnavailableError, match="a server is gone"):
        chief.iterate(number)
    chief.go_on()
    return [chief.coordinator.iterate(k) for k in range(number)][-1]
