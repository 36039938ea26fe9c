"""Workers that meet, and are not where the others are, or train otherwise."""

import types

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.all_reduce import consistency
from tfdist.all_reduce.consistency import Moment
from tfdist.program_error import ProgramError
from tfdist.saved_state import ModelMismatchError


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
    with pytest.raises(ProgramError, match="two is at .* one at") as caught:
        both.meet(Moment.END_OF_FIT, 1)
    assert ("each worker needs one" in str(caught.value)) is needs_batch


def test_the_two_meetings_at_the_end_of_fit_are_told_apart():
    """One compares, the other adopts: their numbers mean different things."""
    both = consistency.Consistency(Others(0, Moment.END_OF_FIT), ("one", "two"))
    with pytest.raises(ProgramError, match="one at the end of `fit`, after"):
        both.adopt(Moment.AFTER_FIT, [tf.Variable(1.0)])


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
        lambda _, __, settings, data: told.append(settings),
    )
    gpu = types.SimpleNamespace(device="/job:worker/task:0/device:GPU:0")
    engine.adopt(Moment.FIT, [gpu], "alike")
    assert told == ["alike; variables on GPU" if compares else "alike"]


def test_an_error_says_how_this_worker_trains():
    # No checksum of settings is negative.
    both = consistency.Consistency(Others(3, -1), ("one", "two"))
    for moment, epoch in (
        (Moment.FIT, "from another epoch, "),
        (Moment.STEP, ""),
    ):
        with pytest.raises(
            ValueError, match=f"^two .* settings, {epoch}or .* device.* GPU$"
        ):
            both.adopt(moment, [tf.Variable(1.0)], "variables on GPU")


@pytest.mark.parametrize("column", [1, 2])
def test_values_of_another_number_of_variables_are_not_compared(column):
    """Each worker would bring as many checksums, and wait for the others'."""
    both = consistency.Consistency(Others(column, 4), ("one", "two"))
    variables = [tf.Variable(1.0) for _ in range(3)]
    with pytest.raises(ModelMismatchError, match="two trains another model"):
        both.compare(Moment.END_OF_FIT, variables)


class Chief(Others):
    """The same, where the chief's values are given."""

    def __init__(self, column, number, value):
        super().__init__(column, number)
        self._bits = np.array([value], np.float32).view(np.int32)

    def from_chief(self, words):
        """Returns the chief's."""
        assert words.shape == self._bits.shape
        return self._bits


@pytest.mark.parametrize(("column", "value"), [(3, 2.0), (1, 1.0), (2, 1.0)])
def test_variables_without_a_step_are_the_chiefs_if_all_have_them(
    monkeypatch, column, value
):
    # Columns: number of variables, their kinds, their values.
    warnings = []
    monkeypatch.setattr(
        consistency.logging, "warning", lambda text, *_: warnings.append(text)
    )
    variable = tf.Variable(1.0)
    both = consistency.Consistency(Chief(column, -1, 2.0), ("one", "two"))
    both.adopt_others(Moment.STEP, [variable])
    assert float(variable) == value
    assert len(warnings) == (column < 3)
