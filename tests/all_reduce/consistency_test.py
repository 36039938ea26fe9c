"""Workers that meet, and are not where the others are, or train otherwise."""

import types

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.all_reduce import consistency
from tfdist.all_reduce.consistency import Moment


class Others:
    """Collectives, in which another worker's row has another number."""

    def __init__(self, column, number):
        self._column = column
        self._number = number

    def gather(self, row, name):
        """Returns the rows of both."""
        del name
        rows = np.array([row, row], np.int64)
        rows[1, self._column] = self._number
        return rows


@pytest.mark.parametrize(
    ("other", "needs_batch"), [(Moment.STEP, True), (Moment.BARRIER, False)]
)
def test_a_worker_that_is_elsewhere_is_named(other, needs_batch):
    both = consistency.Consistency(Others(0, other), ("one", "two"))
    with pytest.raises(RuntimeError, match="two is at .* one at") as caught:
        both.meet(Moment.END_OF_FIT, 1)
    assert ("each worker needs one" in str(caught.value)) is needs_batch


@pytest.mark.parametrize(
    ("strategy", "compares"),
    [(tfdist.AllReduceStrategy, True), (tfdist.GossipStrategy, False)],
)
def test_workers_that_make_the_same_updates_compare_their_devices(
    monkeypatch, strategy, compares
):
    """A GPU rounds in another way; each peer has updates of its own."""
    made, told = strategy(), []
    engine = made._engine
    monkeypatch.setattr(
        engine.consistency,
        "adopt",
        lambda _, __, settings: told.append(settings),
    )
    gpu = types.SimpleNamespace(device="/job:worker/task:0/device:GPU:0")
    engine.adopt(Moment.FIT, [gpu], "alike")
    assert told == ["alike; variables on GPU" if compares else "alike"]


def test_an_error_says_how_this_worker_trains():
    # No checksum of settings is negative.
    both = consistency.Consistency(Others(3, -1), ("one", "two"))
    with pytest.raises(ValueError, match="^two .* kind of device.* GPU$"):
        both.adopt(Moment.FIT, [tf.Variable(1.0)], "variables on GPU")
